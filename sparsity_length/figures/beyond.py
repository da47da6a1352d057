"""Natural text beyond the trained length: what it costs a pretrained model, by scheme (--rope).

Plan: analysis/LOG.md, 2026-11-29. A text's *harm* is the mean loss of its last targets with the whole text
before them minus that with its last part alone, which plain positions reach; a scheme's *repaired share* is 1
minus its harm over plain's, a ratio of sums over texts. Its *gain* is the loss with another document's
distant tokens minus that with the text's own.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from sparsity_length.figures.marked_bits import student
from sparsity_length.results.read import Results
from sparsity_length.results.statistics import Interval, decided, ratio_of_sums

PLAIN = "plain"
SCHEMES = {PLAIN: PLAIN, "YaRN × 2": "yarn", "stair positions": "stair"}
"""Words -> results with the whole text."""
WITHIN = "within"
"""Results with chunks of a third of it, the last of which ends where the text does."""
REPAIRS = 0.5
"""Share of plain's harm that a scheme shall repair."""


def of_texts(folder: Path) -> pd.DataFrame:
    """A row per text that every run has, nats: `within`, and per scheme "loss SCHEME" and "gain SCHEME"."""
    target = ["model", "document_id", "target_position"]
    within = Results(folder / WITHIN).frame("loss_differences", [*target, "long_context_loss"])
    rows = within.rename(columns={"long_context_loss": "within"})
    for scheme, results in SCHEMES.items():
        names = {"long_context_loss": f"loss {scheme}", "document_specific_gain": f"gain {scheme}"}
        whole = Results(folder / results).frame("loss_differences", [*target, *names])
        rows = rows.merge(whole.rename(columns=names), on=target)
    return rows.drop(columns=["model", "target_position"]).groupby("document_id").mean()


def harms(texts: pd.DataFrame) -> dict[str, pd.Series]:
    """Scheme -> nats per text."""
    return {scheme: texts[f"loss {scheme}"] - texts["within"] for scheme in SCHEMES}


def repaired(harm_of: Mapping[str, pd.Series], scheme: str) -> Interval:
    """The share of plain's harm that a scheme repairs."""
    plain = harm_of[PLAIN].to_numpy()
    return ratio_of_sums(plain - harm_of[scheme].to_numpy(), plain)


def verdict(harm_of: Mapping[str, pd.Series], scheme: str) -> str:
    """Whether a scheme repairs half or more of plain's harm; open if plain does none."""
    plain, share = student(harm_of[PLAIN]), repaired(harm_of, scheme)
    is_clear = not plain.low <= 0 <= plain.high
    return decided(supported=is_clear and share.low > REPAIRS, refuted=is_clear and share.high < REPAIRS)
