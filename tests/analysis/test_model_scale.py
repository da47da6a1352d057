"""Sizes and training steps: who is compared with whom, and tables against the planted truth."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_results import LONG_MODELS, MEAN_GAP, SELECTION_BONUS, SHORT_MODELS, Truth

from analysis.gap import scale
from pipeline.cli import InputError
from pipeline.results.read import read_artefact
from pipeline.results.statistics import ratio_of_sums

Scales = tuple[Path, Truth, Truth]
SMALL, LARGE, DOCUMENTS_OF_LARGER = 1_000_000, 3_000_000, 21


@pytest.fixture(scope="module")
def compared(scales: Scales) -> list[scale.ComparedModels]:
    return scale.compared_models([scales[0] / name for name in ("large", "small", "early")])


@pytest.fixture(scope="module")
def changes(compared: list[scale.ComparedModels]) -> pd.DataFrame:
    return scale.changes_with_scale(compared)


def test_models_of_one_size_and_step_are_compared(compared: list[scale.ComparedModels]) -> None:
    found = [(group.results.name, group.num_parameters, group.train_step) for group in compared]
    assert found == [("early", SMALL, 100), ("small", SMALL, 400), ("large", LARGE, 400)]
    assert compared[0].short_models == ()
    assert (compared[1].long_models, compared[1].short_models) == (tuple(LONG_MODELS), tuple(SHORT_MODELS))
    assert compared[1].kinds == ("32 tokens, contiguous", "32 tokens, pose")


def test_results_that_do_not_say_their_size_are_refused(results: Path, tmp_path: Path) -> None:
    for folder, sentence in (
        (results, "does not tell num_parameters, train_step, train_context_length of long"),
        (tmp_path, "holds no 'loss_differences' results"),
    ):
        with pytest.raises(InputError, match=sentence):
            scale.compared_models([folder])


def test_gain_and_gap_are_planted(compared: list[scale.ComparedModels], scales: Scales) -> None:
    gains = scale.gains_by_scale(compared).set_index(["num_parameters", "train_step"])["loss_difference"]
    assert gains[SMALL, 400] == pytest.approx(scales[1].targets["gain"].mean(), abs=1e-4)
    assert len(gains.unique()) == 3
    table = scale.gaps_by_scale(compared).set_index(["num_parameters", "model"])
    assert len(table) == 4  # none where no short-trained model was measured
    needed = scales[1].targets["needed_k"]
    for model, gap in MEAN_GAP.items():
        row = table.loc[(SMALL, model)]
        assert row["generalization_gap"] == pytest.approx(gap * np.log2(needed + 1).mean(), abs=0.005)


def carried_share(truth: Truth, rule: str, k: int, is_chosen: pd.Series | None = None) -> float:
    """As planted, with the selection bonus."""
    carried = truth.recovered_gain(rule, k) + SELECTION_BONUS[rule] * np.log2(k + 1)
    if is_chosen is None:
        is_chosen = pd.Series(True, index=carried.index)
    return float(carried[is_chosen].sum() / truth.targets["gain"][is_chosen].sum())


def test_what_is_carried_is_the_planted_share(compared: list[scale.ComparedModels], scales: Scales) -> None:
    keys = ["num_parameters", "train_step", "rule"]
    rows = scale.carried_by_scale(compared).set_index(keys)
    nearest = rows.loc[(SMALL, 400, "nearest"), "share"]
    assert nearest == pytest.approx(carried_share(scales[1], "nearest", 16), abs=0.01)
    assert "leave_one_out" not in rows.index.get_level_values("rule")
    targets = scales[1].targets
    is_chosen = targets["target_position"] % 4 == 0
    some = scale.carried_by_scale(compared[1:2], targets[is_chosen])
    assert set(some["k"]) == {16} and set(some["num_targets"]) == {is_chosen.sum()}
    nearest = some.set_index(keys).loc[(SMALL, 400, "nearest"), "share"]
    assert nearest == pytest.approx(carried_share(scales[1], "nearest", 16, is_chosen), abs=0.02)


def test_last_steps_and_common_targets(changes: pd.DataFrame, compared: list[scale.ComparedModels]) -> None:
    assert (set(changes["smaller"]), set(changes["larger"])) == ({SMALL}, {LARGE})
    assert set(changes["num_documents"]) == {DOCUMENTS_OF_LARGER}
    assert set(changes["num_targets"]) == {16 * DOCUMENTS_OF_LARGER}
    assert list(changes["what"][:2]) == ["long_context_loss", "loss_difference"]
    assert set(changes["rule"][2:]) == {"nearest", "random"}  # the others need a null, or another judge
    assert scale.changes_with_scale(compared[:2]).empty  # one size


def test_a_changed_gain_is_the_mean_difference_of_targets(changes: pd.DataFrame, scales: Scales) -> None:
    folder, _, larger = scales
    gains = [
        read_artefact(folder / name, "loss_differences", None, {"model": ["long-seed0"]})
        .set_index(["document_id", "target_position"])["loss_difference"]
        .astype("float64")
        for name in ("small", "large")
    ]
    differences = (gains[1] - gains[0]).dropna().groupby("document_id").sum().to_numpy()
    expected = ratio_of_sums(differences, np.full(len(differences), 16.0))
    (row,) = changes[changes["what"] == "loss_difference"].to_dict("records")
    found = [row[f"difference{end}"] for end in ("", "_low", "_high")]
    assert found == pytest.approx([expected.estimate, expected.low, expected.high], abs=1e-9)
    assert row["of_larger"] == pytest.approx(larger.targets["gain"].mean(), abs=1e-4)


def test_a_changed_share(changes: pd.DataFrame, compared: list[scale.ComparedModels], scales: Scales) -> None:
    rows = changes[changes["what"] == "share"].set_index(["rule", "k"])
    documents = set(scales[2].targets["document_id"])
    for rule, k in (("nearest", 16), ("random", 2)):
        shares = [
            carried_share(truth, rule, k, truth.targets["document_id"].isin(documents))
            for truth in scales[1:]
        ]
        row = rows.loc[(rule, k)]
        assert [row["of_smaller"], row["of_larger"]] == pytest.approx(shares, abs=0.01)
        assert row["difference"] == pytest.approx(row["of_larger"] - row["of_smaller"], abs=1e-12)
        assert row["difference_low"] < row["difference"] < row["difference_high"]
    targets, larger = scales[1].targets, scales[2]
    some = scale.changes_with_scale(compared, targets[targets["target_position"] % 4 == 0])
    assert set(some["num_targets"]) == {4 * DOCUMENTS_OF_LARGER}
    of_larger = some.set_index(["what", "rule", "k"]).loc[("share", "nearest", 4), "of_larger"]
    is_chosen = larger.targets["target_position"] % 4 == 0
    assert of_larger == pytest.approx(carried_share(larger, "nearest", 4, is_chosen), abs=0.02)
