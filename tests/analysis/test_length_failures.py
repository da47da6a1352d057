"""The four experiments of what fails at length: verdicts from what is kept, and their rules by hand."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.figures import cues, marked_bits, pages
from analysis.figures import unseen_distances as unseen
from pipeline.results.read import read_artefact

KEPT = pages.REFERENCE / "length"


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.parent.name + page.name)
def test_every_page_holds_what_the_kept_results_say(page: Any) -> None:
    text = page.read_text(encoding="utf-8")
    assert pages.fill(text) == text, "python -m analysis.figures.pages"


def test_the_verdicts() -> None:
    placed = pd.read_parquet(KEPT / "placed_targets.parquet")
    assert unseen.verdict_of_unseen_distances(unseen.unseen_distances(placed)) == "open"
    conditions = unseen.distance_or_number(placed)
    assert unseen.verdict_of_distance_or_number(conditions, "own") == "neither alone"
    assert unseen.verdict_of_distance_or_number(conditions, "swap") == "distance"
    accuracy = read_artefact(KEPT / "functions", "synthetic_accuracy")
    assert marked_bits.verdict(accuracy)[0] == "the number of tokens is not what fails"
    examples = read_artefact(KEPT / "cues", "synthetic_examples")
    contrasts = cues.cue_contrasts(cues.cue_distances(examples))
    assert cues.verdict_of_distances(contrasts) == "number has an effect of its own"


def slopes(primary: tuple[float, float], beyond: tuple[float, float], lowest: tuple[float, float]) -> Any:
    rows = [
        ("gap at 224", "as planned", *primary),
        ("gap at 224 less that at 64", "as planned", *beyond),
        ("gap at 224", "lowest eighth left out", *lowest),
        ("gap at 224", "highest eighth left out", 0.1, 0.2),
    ]
    table = pd.DataFrame(rows, columns=["outcome", "variant", "slope_low", "slope_high"])
    return table.assign(mean=0.6)  # so that the smallest effect is 0.03


@pytest.mark.parametrize(
    ("primary", "beyond", "lowest", "verdict"),
    [
        ((0.01, 0.09), (0.02, 0.08), (0.01, 0.1), "supported"),
        ((0.01, 0.09), (0.02, 0.08), (-0.01, 0.1), "open"),
        ((-0.09, -0.01), (-0.08, -0.02), (-0.1, 0.1), "opposite"),
        ((-0.01, 0.029), (-0.02, 0.02), (-0.01, 0.1), "refuted"),
        ((-0.01, 0.031), (-0.02, 0.02), (-0.01, 0.1), "open"),
    ],
)
def test_the_rule_of_unseen_distances(primary: Any, beyond: Any, lowest: Any, verdict: str) -> None:
    assert unseen.verdict_of_unseen_distances(slopes(primary, beyond, lowest)) == verdict


def examples_of(answer: str) -> pd.DataFrame:
    """Two bits, all four values; the model answers as told: the parity, or OR."""
    bits = [(0, 0), (0, 1), (1, 0), (1, 1)]
    says = {"parity": lambda a, b: (a + b) % 2, "or": lambda a, b: a | b}[answer]
    return pd.DataFrame(
        {
            "task": "sparse_parity",
            "sparsity": 2,
            "seed": 0,
            "size": 18,
            "decisive_tokens": [f"* {a} * {b}" for a, b in bits],
            "answer": [str(says(a, b)) for a, b in bits],
        }
    )


def test_which_function_a_model_answers() -> None:
    parity, of_or = (marked_bits.simpler_rules(examples_of(name)).iloc[0] for name in ("parity", "or"))
    assert (parity["parity"], parity["or"], parity["majority"], parity["last"]) == (1, 0.75, 0.25, 0.5)
    assert (of_or["parity"], of_or["or"]) == (0.75, 1)


def test_cues_are_compared_at_one_distance_of_the_farthest() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(5):
        for task, number in (("signs_1", 1), ("signs_4", 4)):
            for distances in rng.integers(1, 512, (200, number)):
                excess = np.max(distances) / 1000 + (0.1 if number == 4 else 0)
                rows.append((task, seed, distances.tolist(), excess))
    examples = pd.DataFrame(rows, columns=["task", "seed", "distances", "excess_loss"])
    contrasts = cues.cue_contrasts(cues.cue_distances(examples)).set_index("distance")
    assert contrasts.loc["64 to 128", "difference"] == pytest.approx(0.1, abs=0.03)
    assert contrasts.loc["mean", "difference"] == pytest.approx(0.1, abs=0.03)
    assert cues.verdict_of_distances(contrasts.reset_index()) == "number has an effect of its own"
