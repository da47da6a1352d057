"""Retrieval and recall of planted needles, on results of known losses and selections."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible
from needle_results import DEPTHS, KS, LENGTHS, NUM_ANSWER, SOURCES, rows_of_needles, write_needle_results

from analysis.drawing import ModelLabel, model_labels
from analysis.tokens import needles
from pipeline.cli import InputError
from pipeline.text.planting import NEEDLES_FILE, write_truth


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_needle_results(tmp_path_factory.mktemp("needles"))


def test_retrieval_is_the_difference_from_the_same_haystack_without_the_needle(folder: Path) -> None:
    table = needles.retrieval_losses(folder)
    assert table[["context_length", "depth"]].values.tolist() == [[n, d] for n in LENGTHS for d in DEPTHS]
    assert table["num_targets"].tolist() == [len(SOURCES) * NUM_ANSWER] * 6
    assert table["num_documents"].tolist() == [len(SOURCES)] * 6
    assert table["retrieval_gain"].tolist() == [1.0, 0.0, 2.75] * 2
    assert table["retrieval_gain_low"].tolist() == [1.0, 0.0, 2.75] * 2  # sources cancel: no spread is left
    assert table["control_loss"].tolist() == [4.0] * 6
    # Only the first source at depth 1 has a loss below ln 2.
    assert table["retrieved_share"].tolist() == pytest.approx([0, 0, 1 / 3] * 2)


def test_precision_and_recall_by_hand(folder: Path) -> None:
    table = needles.found_needles(folder, KS)
    # At depth 1 of both lengths the answer stands 15 to 17 tokens before the targets: far, so nothing drops.
    assert set(table["num_targets"]) == {len(SOURCES) * len(DEPTHS) * NUM_ANSWER}
    own = table[(table["rule"] == "leave_one_out") & (table["context_length"] == 40)].set_index("k")
    assert own["precision"].to_dict() == {1: 1, 2: 1, 4: 0.5}
    assert own["recall"].to_dict() == {1: 0.5, 2: 1, 4: 1}
    # The first target is the first token, which is taken second.
    assert own["hit_share"].to_dict() == {1: 0.5, 2: 1, 4: 1}
    nearest = table[table["rule"] == "nearest"]
    assert (nearest[["precision", "recall", "hit_share"]] == 0).all(axis=None)
    num_far = np.array([28, 29])
    assert own["chance_precision"].to_dict() == pytest.approx(dict.fromkeys(KS, (2 / num_far).mean()))
    assert own["chance_recall"].to_dict() == pytest.approx({k: (k / num_far).mean() for k in KS})


def test_a_needle_in_the_short_context_does_not_count(folder: Path, tmp_path: Path) -> None:
    truth = [row | {"needle_answer_positions": [35, 36]} for row in rows_of_needles(40) if row["depth"]]
    here = tmp_path / "length-40"
    write_truth(here / "data", NEEDLES_FILE, truth)
    (here / "results").symlink_to(folder / "length-40" / "results")
    with pytest.raises(InputError, match="in no document of .* does the needle lie before the short context"):
        needles.found_needles(tmp_path, KS)


def test_bad_folders_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no folder length-"):
        needles.retrieval_losses(tmp_path)
    late = [row | {"answer_position": 1000} for row in rows_of_needles(40)]
    write_truth(tmp_path / "length-40" / "data", NEEDLES_FILE, late)
    (tmp_path / "length-40" / "results").symlink_to(folder / "length-40" / "results")
    with pytest.raises(InputError, match="measured no token of an answer"):
        needles.retrieval_losses(tmp_path)


def test_a_line_a_model_by_depth_is_the_table_of_the_longest_context(folder: Path) -> None:
    table = needles.retrieval_losses(folder)
    figure = needles.retrieval_figure(table[table["context_length"] == 60], labels(folder))
    (line,) = figure.axes[0].containers
    assert line.lines[0].get_ydata().tolist() == [1.0, 0.0, 2.75]
    assert line.lines[0].get_xdata().tolist() == DEPTHS
    assert_legible(figure)


def labels(folder: Path) -> dict[str, ModelLabel]:
    return model_labels(folder / f"length-{LENGTHS[-1]}" / "results", "loss_differences")


def test_the_figure_of_found_needles_can_be_read(folder: Path) -> None:
    table = needles.found_needles(folder, KS)
    own = table[table["context_length"] == 60]
    null = own.assign(far_context="other_document", hit_share=0.0, hit_share_low=0.0, hit_share_high=0.1)
    figure = needles.found_figure(pd.concat([own, null]), labels(folder)["copier"])
    nulls = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert nulls and all(line.get_linestyle() == "--" for line in nulls)
    assert_legible(figure)
