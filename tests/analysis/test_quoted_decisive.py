"""The answer's numbers are those that analysis/outcomes.py makes of the targets that are kept."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from quoted import FINDINGS, LOG, REFERENCE, agree, agree_cell, cells_of, interval, section

from analysis import outcomes as program
from analysis.gap.outcomes import (
    GAP,
    HARM,
    INSTRUMENTED,
    LEAST_DIVERGENCE,
    LEAST_SQUARES,
    PLACEBO,
    PLANNED,
    SHARE,
    SHORT_TRAINED,
    _what_is_open,
)
from pipeline.results.files import read_parquet

DECISIVE = REFERENCE / "decisive"
OUTCOMES = [outcome.name for outcome in (GAP, SHARE, HARM)]
VARIANTS = {
    "any D(0) ": "any D(0)", "D(0) of at least 0.05": "D(0) of at least 0.05 nats",
    "D(0) of at least 0.2": "D(0) of at least 0.2 nats", "weighed": "weighed by the stake",
    "without Wikipedia": "without Wikipedia", "not after": "not after a repeated bigram",
    "k\\* at 0.5": "k* at 0.5", "`mean_log2_k` by the loss": "by the loss",
}  # fmt: skip
"""Rows of the page's table of what was otherwise than planned."""


def slopes_of(targets: str, out: Path) -> pd.DataFrame:
    """The table of outcomes, made anew by the command that the pages show."""
    words = ["--targets", str(DECISIVE / targets), "--out", str(out)]
    program.main(program.parser().parse_args(words))
    return read_parquet(out / "outcomes.parquet").to_pandas()


@pytest.fixture(scope="module")
def slopes(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return slopes_of("outcome_targets.parquet", tmp_path_factory.mktemp("again"))


def rows_of(slopes: pd.DataFrame, compared: str, estimator: str, variant: str = PLANNED) -> list[dict]:
    """One a planned outcome, in their order."""
    chosen = slopes[(slopes["variant"] == variant) & (slopes["compared"] == compared)]
    chosen = chosen[chosen["estimator"] == estimator].set_index("outcome", drop=False)
    return chosen.loc[OUTCOMES].to_dict("records")


def test_the_kept_table_is_made_of_the_kept_targets(slopes: pd.DataFrame) -> None:
    kept = read_parquet(DECISIVE / "outcomes.parquet").to_pandas()
    numbers = list(slopes.select_dtypes("number"))
    assert np.allclose(slopes[numbers], kept[numbers], rtol=1e-6, atol=1e-9, equal_nan=True)
    assert (slopes["decision"] == kept["decision"]).all()


def test_the_table_of_the_answer_and_its_sentences(slopes: pd.DataFrame) -> None:
    text = section(FINDINGS, "The answer")
    main, placebo = (rows_of(slopes, compared, LEAST_SQUARES) for compared in (SHORT_TRAINED, PLACEBO))
    for number, (row, other) in enumerate(zip(main, placebo, strict=True), 1):
        agree_cell(text, f"{number}: ", row, "slope")
        agree_cell(text, f"{number}: ", other, "slope", 1)
        agree(cells_of(text, f"{number}: ")[4], row["smallest_effect"])
    assert f"**Decision: {main[0]['decision']}**, in both studies." in text
    assert [row["slope_high"] < row["smallest_effect"] for row in main] == [True, True, False]
    assert not any(row["slope_low"] > 0 for row in main)
    agree(re.findall(r"\(Holm's p = (\S+) each\)", text)[0], main[0]["holm_p_value"])
    assert len({round(row["holm_p_value"], 2) for row in main}) == 1
    assert main[0]["num_targets"] + main[0]["num_left_out"] == 14_336


def test_what_was_otherwise_than_planned(slopes: pd.DataFrame) -> None:
    text = section(LOG, "2026-11-25 · The decisive study at 0.34 million parameters")
    for label, variant in VARIANTS.items():
        for place, row in enumerate(rows_of(slopes, SHORT_TRAINED, LEAST_SQUARES, variant)):
            agree(cells_of(text, label)[place], *(value + 0.0 for value in interval(row, "slope")))
    ends_below = {
        variant
        for variant in VARIANTS.values()
        if all(
            row["slope_high"] < row["smallest_effect"]
            for row in rows_of(slopes, SHORT_TRAINED, LEAST_SQUARES, variant)
        )
    }
    page = section(FINDINGS, "Distraction or ignorance?").replace("\n", " ")
    three = (
        'Three would read "refuted": with all targets; with those of at least 0.05 nats at stake; with'
        " `mean_log2_k` by the loss."
    )
    assert three in page
    assert ends_below == {"any D(0)", "D(0) of at least 0.05 nats", "by the loss"}
    for place, row in enumerate(rows_of(slopes, SHORT_TRAINED, LEAST_SQUARES)):
        ends = re.split(" to ", cells_of(text, "single pairs of seeds")[place])
        assert ends == [f"{min(row['pair_slopes']):.3f}", f"{max(row['pair_slopes']):.3f}"]


@pytest.fixture(scope="module")
def second_slopes(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return slopes_of("again_targets.parquet", tmp_path_factory.mktemp("once_more"))


def test_the_second_study(slopes: pd.DataFrame, second_slopes: pd.DataFrame) -> None:
    page = section(FINDINGS, "The answer")
    text, first = page.replace("\n", " "), rows_of(slopes, SHORT_TRAINED, LEAST_SQUARES)
    second, placebo = (
        rows_of(second_slopes, compared, LEAST_SQUARES) for compared in (SHORT_TRAINED, PLACEBO)
    )
    (together,) = re.findall(r"Both studies together.*?\): (.*?\]), (.*?\]) and (.*?\])\.", text)
    both = list(zip(first, second, strict=True))
    for number, (pair, beside, told) in enumerate(zip(both, placebo, together, strict=True), 1):
        agree_cell(page, f"{number}: ", pair[1], "slope", 2)
        agree_cell(page, f"{number}: ", beside, "slope", 3)
        weights = [1 / (row["text_error"] ** 2 + row["seed_error"] ** 2) for row in pair]
        mean, half = np.average([row["slope"] for row in pair], weights=weights), 1.96 / np.sqrt(sum(weights))
        agree(told, mean, mean - half, mean + half)
    for number, rows in ((1, both[0]), (3, both[2])):
        counts = "; ".join(f"{row['num_targets']:,} ({row['num_documents']})" for row in rows)
        assert cells_of(page, f"{number}: ")[5] == counts
    agree(re.findall(r"agree at (\S+ and \S+) \(Spearman", text)[0], *(row["spearman"] for row in both[0]))
    gap, _, harm = second
    assert (
        "In the second study slope 3 is above 0; slopes 1 and 2 are below." in text
        and harm["slope_low"] > 0 > gap["slope_high"]
    )
    assert harm["holm_p_value"] < 0.05 and placebo[2]["slope_low"] < 0 < placebo[2]["slope_high"]
    assert placebo[0]["slope_high"] < 0 and gap["decision"] == "open"
    title = "Open: the slope of the harm of length is above 0, that of the gap below"
    assert _what_is_open({row["outcome"]: row for row in second}) == title
    kept = [read_parquet(DECISIVE / f"{name}_targets.parquet").to_pandas() for name in ("outcome", "again")]
    assert not set(kept[0]["document_id"]) & set(kept[1]["document_id"])
    texts = (rows.drop_duplicates("document_id") for rows in kept)
    agree(
        re.findall(r"texts; (\S+ and \S+) are from C4", text)[0],
        *((t["source"] == "C4").mean() for t in texts),
    )


def test_the_log_of_the_second_study(second_slopes: pd.DataFrame) -> None:
    text = section(LOG, "2026-11-26 · Planned: the decisive study once more")
    for label, variant in VARIANTS.items():
        if variant in ("any D(0)", "D(0) of at least 0.05 nats"):
            continue  # of targets that are not kept
        for place, row in enumerate(rows_of(second_slopes, SHORT_TRAINED, LEAST_SQUARES, variant)):
            agree(cells_of(text, label)[place], *(value + 0.0 for value in interval(row, "slope")))
    instrumented = [row["slope"] for row in rows_of(second_slopes, SHORT_TRAINED, INSTRUMENTED)]
    agree(re.findall(r"the other's instrument: (.*?)\. ", text)[0], *instrumented)


def test_choosers_and_judges_exchanged(slopes: pd.DataFrame, tmp_path: Path) -> None:
    heading = "Planned: choosers and judges of the decisive study exchanged"
    table = section(LOG, "2026-11-25 · The decisive study at 0.34 million parameters")
    text = section(LOG, f"2026-11-26 · {heading}").replace("\n", " ")
    exchanged = rows_of(slopes_of("exchanged_targets.parquet", tmp_path), SHORT_TRAINED, LEAST_SQUARES)
    told = re.findall(r"The slopes agree: (.*?\]), (.*?\]) and (.*?\]);", text)[0]
    planned = rows_of(slopes, SHORT_TRAINED, LEAST_SQUARES)
    for quoted, cell, row, first in zip(
        told, cells_of(table, "choosers and judges"), exchanged, planned, strict=True
    ):
        agree(quoted, *interval(row, "slope"))
        agree(cell, *interval(row, "slope"))
        assert row["slope_low"] < first["slope"] < row["slope_high"]
        assert first["slope_low"] < row["slope"] < first["slope_high"]
    assert exchanged[0]["decision"] == "open"
    of_texts, of_seeds = re.findall(r"(0\.\d+) \(there", text)
    agree(of_texts, exchanged[0]["text_error"])
    agree(of_seeds, exchanged[0]["seed_error"])
    kept = [
        read_parquet(DECISIVE / f"{name}_targets.parquet").to_pandas() for name in ("outcome", "exchanged")
    ]
    at_stake = [rows[rows["least_divergence"] >= LEAST_DIVERGENCE] for rows in kept]
    both = at_stake[0].merge(at_stake[1], on=["measured", "document_id", "target_position"])
    for (agreed, num_targets), (_, rows) in zip(
        re.findall(r"(0\.\d+) for the (?:gap|harm)'s(?: targets)? \((\S+)", text),
        reversed(list(both.groupby("measured"))),
        strict=True,
    ):
        means = pd.DataFrame({side: rows[f"mean_log2_k_{side}"].map(np.mean) for side in ("x", "y")})
        agree(f"{agreed} {num_targets}", means.corr("spearman").iloc[0, 1], len(means.dropna()))


def test_what_chosen_tokens_give_alone() -> None:
    text = section(FINDINGS, "Distraction or ignorance?")
    whole = read_parquet(DECISIVE / "chosen_alone.parquet").to_pandas()
    table = whole[(whole["positions"] == "compact") & (whole["k"] == 16)].set_index("model")
    models = ["long-seed4", "short-pose-seed0", "short-pose-seed1", "short-contiguous-seed0"]
    labels = {
        "gain of the whole": "gain", "saved by 16 chosen tokens, against the short": "less_than_short",
        "the same, another": "null_less_than_short",
        "saved by the 16 chosen, against the whole": "less_than_long",
        "saved by the 16 chosen, against the 16": "less_than_nearest",
    }  # fmt: skip
    for place, model in enumerate(models):
        for label, name in labels.items():
            row = table.loc[f"300k-{model}"]
            assert cells_of(text, label)[place] == "{:.3f} [{:.3f}, {:.3f}]".format(*interval(row, name))
    flat = text.replace("\n", " ")
    ends = [interval(table.loc[f"300k-{model}"], "less_than_nearest")[1:] for model in models[1:]]
    (within,) = re.findall(r"\(within (\S+) nats in all three\)", flat)
    assert max(abs(end) for pair in ends for end in pair) <= float(within)
    own = (
        whole[(whole["positions"] == "original") & (whole["k"] == 16)]
        .set_index("model")
        .loc["300k-" + models[-1]]
    )
    low, high = (-own[f"less_than_short_{end}"] for end in ("high", "low"))
    (raised,) = re.findall(r"loss is (\S+ \[.*?\]) nats higher than with the short", flat)
    agree(raised, -own["less_than_short"], low, high)
