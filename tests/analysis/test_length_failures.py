"""The four experiments of what fails at length: pages and verdicts from what is kept."""

from typing import Any

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
    assert marked_bits.verdict(accuracy)[0] == "the cause is not the number of tokens"
    examples = read_artefact(KEPT / "cues", "synthetic_examples")
    contrasts = cues.cue_contrasts(cues.cue_distances(examples))
    assert cues.verdict_of_distances(contrasts) == "number has an effect of its own"
