"""OLMo beyond its trained length, by scheme of positions: what it loses there, and what it gains.

Plan: analysis/LOG.md, 2026-11-29 (does ALiBi read what it does not fail on?). Rows: a model and text, with
its mean losses in nats: `loss_1`, `loss_2` and `loss_4` with 1, 2 and 4 times the trained length as context,
and `swapped_loss` with another document's tokens beyond the first of these.
"""

import pandas as pd

from sparsity_length.figures.marked_bits import student, welch
from sparsity_length.results.statistics import Interval, decided

SCHEME_WORDS = {
    "rope": "RoPE",
    "pose": "RoPE, PoSE",
    "alibi": "ALiBi",
    "nope": "no positions",
    "long": "RoPE, trained at 128",
}
"""Scheme, the first part of a model's name -> that in tables."""
MOST_RISE = 0.02
"""Nats: what rises by less does not fail, as planned."""


def of_texts(losses: pd.DataFrame) -> pd.DataFrame:
    """Rows with `scheme`, `seed` and, in nats, what longer contexts add.

    `rise` of the loss from 1 to 4 times the trained length; `specific_gain` of the text's own distant tokens
    over another document's; `null`, the gain of these over none.
    """
    names = losses["model"].str.rpartition("-seed")
    return losses.assign(
        scheme=names[0],
        seed=names[2],
        rise=losses["loss_4"] - losses["loss_1"],
        specific_gain=losses["swapped_loss"] - losses["loss_4"],
        null=losses["loss_1"] - losses["swapped_loss"],
    )


def mean_by(texts: pd.DataFrame, scheme: str, column: str, unit: str) -> pd.Series:
    """Means of a scheme's rows for each text (over seeds), or for each seed (over texts)."""
    return texts[texts["scheme"] == scheme].groupby(unit)[column].mean()


def rises(texts: pd.DataFrame, scheme: str) -> list[Interval]:
    """How much the loss rises, with intervals over texts and over seeds."""
    return [student(mean_by(texts, scheme, "rise", unit)) for unit in ("document_id", "seed")]


def beside_half(texts: pd.DataFrame, scheme: str) -> list[Interval]:
    """The specific gain minus half of that of models trained at the full length; over texts, over seeds."""
    by_text, by_seed = (
        [
            mean_by(texts, scheme, "specific_gain", unit),
            mean_by(texts, "long", "specific_gain", unit) / 2,
        ]
        for unit in ("document_id", "seed")
    )
    return [student(by_text[0] - by_text[1]), welch(*by_seed)]


def is_below(bound: float, intervals: list[Interval]) -> str:
    """Verdict on a claim that a number lies below a bound; every interval must agree."""
    return decided(
        supported=all(interval.high < bound for interval in intervals),
        refuted=all(interval.low > bound for interval in intervals),
    )
