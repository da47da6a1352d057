"""Every marked number of the pages is that of the kept results; so are the variants of headlines."""

from dataclasses import astuple
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sparsity_length.figures import distance, interference, pages, read, recovered_loss, robustness


@pytest.mark.slow
@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.parent.name + page.name)
def test_every_page_holds_what_the_kept_results_say(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert pages.fill(text) == text, "python -m sparsity_length.figures.pages"


def test_rows_tell_that_two_texts_carry_the_effect() -> None:
    # But for two a mean of 0.04, too noisy to be told from 0.
    sums = pd.DataFrame({"lead": [0.5, 0.5, *[0.14, -0.06] * 11], "gain": 1.0})
    rows = pd.DataFrame(
        robustness.rows_of("lead", "planted", robustness.of_sums(sums), {"k": 16, "criterion": "loss"})
    )
    table = robustness.with_holds(rows).set_index("variant")
    published, without = (
        table.loc[name] for name in ("as published", "without the two most influential texts")
    )
    assert published["is_headline"] and published["estimate_low"] > 0
    assert without["estimate"] == pytest.approx(0.04)
    assert without["estimate_low"] < 0 and not without["holds"]


def test_a_variant_on_the_other_side_does_not_hold() -> None:
    intervals = {
        "variant": ["as published", "narrower", "wider", "below"],
        "estimate_low": [0.1, 0.15, -0.1, -0.3],
        "estimate_high": [0.3, 0.2, 0.5, -0.1],
    }
    rows = pd.DataFrame(intervals).assign(headline="lead", model="m", k=np.nan, criterion=np.nan)
    assert robustness.with_holds(rows)["holds"].tolist() == [True, True, False, False]


def test_the_kept_headlines_are_the_numbers_of_the_pages() -> None:
    """So the kept table is not older than the results that it is made of, nor than the functions."""
    kept = pages.robustness().query("is_headline").set_index(["headline", "model"])
    expected = {}
    for model, rows in list(pages.sparse_losses().items())[:2]:
        _, share, lead = recovered_loss.paper_verdict(rows)
        expected["recovered fraction", model] = astuple(share)
        expected["lead over recency", model] = astuple(lead)
    slopes = interference.slopes(interference.with_outcomes(pages.interference_targets()))
    for headline, name, table in (
        ("slope of interference", "kind", slopes.query("variant == 'as planned'")),
        ("slope of the share kept", "outcome", distance.slopes(*distance.deciding(pages.moved_targets()))),
    ):
        for row in table.to_dict("records"):
            expected[headline, row[name]] = astuple(read.interval_of(row, "slope"))
    columns = ["estimate", "estimate_low", "estimate_high"]
    np.testing.assert_allclose(kept.loc[[*expected], columns], [*expected.values()], rtol=1e-6)
