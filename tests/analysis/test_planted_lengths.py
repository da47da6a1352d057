"""Planted answers beyond the trained length: shares and losses by hand, and a title that says no more."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible
from written_results import write_rows

from analysis import planted_lengths
from analysis.tokens.planted import (
    answers_at_lengths,
    learnt,
    over_models,
    planted_lengths_figure,
    texts_with_chance_signs,
)
from pipeline.cli import InputError
from pipeline.results.files import read_parquet
from pipeline.text.folder import EVALUATION_FILE, EvaluationDocument, write_evaluation_documents
from pipeline.text.planting import write_planted

LENGTHS, KS, MODELS, NUM_TEXTS = (64, 128), (1, 8), ("seed0", "seed1"), 4
LOSSES = {  # by model, k and length: of the four texts
    ("seed0", 1, 64): [0.1, 0.1, 0.1, 0.1], ("seed0", 1, 128): [0.1, 0.1, 0.1, 3.0],
    ("seed0", 8, 64): [0.2, 0.2, 0.2, 0.2], ("seed0", 8, 128): [3.0, 3.0, 3.0, 0.1],
    ("seed1", 1, 64): [0.0, 0.0, 0.0, 0.0], ("seed1", 1, 128): [0.0, 0.0, 0.0, 0.0],
    ("seed1", 8, 64): [0.1, 0.1, 3.0, 3.0], ("seed1", 8, 128): [3.0, 3.0, 3.0, 3.0],
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lengths")
    for length in LENGTHS:
        is_shortest = length == LENGTHS[0]
        results = folder / ("results" if is_shortest else f"at{length}/results")
        data = folder / "signs" / ("planted" if is_shortest else f"planted-{length}") / "data"
        documents = [(k, f"{length}-{k}-{text}") for k in KS for text in range(NUM_TEXTS)]
        data.mkdir(parents=True)
        truth = {"target_position": length - 1, "planted_positions": [3], "best_loss": 0.0}
        write_planted(data, [truth | {"document_id": name, "num_planted": k} for k, name in documents])
        rows = [
            {
                "model": model, "document_id": name, "target_position": length - 1,
                "long_context_loss": LOSSES[model, k, length][int(name[-1])],
            }
            for model in MODELS
            for k, name in documents
        ]  # fmt: skip
        write_rows(results, "loss_differences", "loss_differences", pd.DataFrame(rows))
    return folder


@pytest.fixture(scope="module")
def answers(run: Path) -> pd.DataFrame:
    return answers_at_lengths([run / "results", run / "at128/results"], sorted(run.glob("signs/*/data")))


def test_right_answers_and_losses_are_those_of_the_texts(answers: pd.DataFrame) -> None:
    assert len(answers) == len(LOSSES)
    for row in answers.to_dict("records"):
        losses = np.array(LOSSES[row["model"], row["num_planted"], row["test_length"]])
        assert row["right_share"] == (losses < np.log(2)).mean()
        assert row["loss"] == pytest.approx(losses.mean())
        assert row["num_targets"] == row["num_documents"] == NUM_TEXTS


def test_what_was_not_learnt_at_the_trained_length_is_left_out(answers: pd.DataFrame) -> None:
    known = learnt(answers)
    left = set(zip(known["model"], known["num_planted"], strict=True))
    assert left == {("seed0", 1), ("seed0", 8), ("seed1", 1)}
    cells = over_models(known).set_index(["num_planted", "test_length"])
    of_one = cells.loc[(1, 128), ["right_share", "right_share_low", "right_share_high"]]
    assert of_one.tolist() == [0.875, 0.75, 1.0]
    assert cells.loc[(8, 128), "num_models"] == 1
    figure = planted_lengths_figure(cells.reset_index())
    assert len(figure.axes[0].lines) == len(KS)
    assert_legible(figure)


def test_the_program_names_what_was_not_learnt(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted_lengths.main(planted_lengths.parser().parse_args(["--run", str(run), "--figures", str(tmp_path)]))
    assert "Not learnt, and left out of the figure: 8 deciding, seed1" in capsys.readouterr().out
    assert read_parquet(tmp_path / "planted_lengths.parquet").num_rows == len(LOSSES)
    assert (tmp_path / "planted_lengths.png").is_file()


def test_texts_that_hold_another_sign_by_chance_can_be_left_out(tmp_path: Path) -> None:
    texts = {  # two signs of 2 planted at places 1 and 3; then question and answer
        "a": [0, 50, 0, 60, 0, 0, 90, 91],
        "b": [0, 51, 0, 61, 0, 0, 90, 92],
        "other": [0, 50, 0, 60, 0, 61, 90, 91],
        "same": [0, 50, 50, 60, 0, 0, 90, 91],
        "of another number": [0, 50, 70, 60, 0, 0, 90, 91],
        "one": [0, 0, 70, 0, 50, 0, 93, 94],
        "behind the question": [0, 50, 0, 60, 0, 0, 90, 51],
    }
    documents = [
        EvaluationDocument(name, np.array(tokens, dtype="<i4"), None) for name, tokens in texts.items()
    ]
    write_evaluation_documents(tmp_path / EVALUATION_FILE, documents, "plant_signs")
    signs = {True: {"num_planted": 1, "planted_positions": [2]},
             False: {"num_planted": 2, "planted_positions": [1, 3]}}  # fmt: skip
    answer = {"target_position": 7, "best_loss": 0.0}
    rows = [{"document_id": name, **answer, **signs[name == "one"]} for name in texts]
    write_planted(tmp_path, rows)
    assert texts_with_chance_signs([tmp_path]) == {"other"}


def test_documents_that_do_not_count_are_left_out(run: Path) -> None:
    left_out = {"128-1-3", "64-8-0"}
    folders = [run / "results", run / "at128/results"]
    kept = answers_at_lengths(folders, sorted(run.glob("signs/*/data")), left_out)
    cells = kept.set_index(["model", "num_planted", "test_length"])
    assert cells.loc[("seed0", 1, 128), "right_share"] == 1.0
    everything = {f"{length}-{k}-{text}" for length in LENGTHS for k in KS for text in range(NUM_TEXTS)}
    with pytest.raises(InputError, match="holds another sign by chance"):
        answers_at_lengths(folders, sorted(run.glob("signs/*/data")), everything)


def test_a_run_without_planted_answers_is_refused(run: Path, tmp_path: Path) -> None:
    words = ["--run", str(tmp_path), "--figures", str(tmp_path)]
    with pytest.raises(InputError, match="holds no losses of planted answers; run the study first"):
        planted_lengths.main(planted_lengths.parser().parse_args(words))
    with pytest.raises(InputError, match="measured a planted answer"):
        answers_at_lengths([run / "results"], [run / "signs/planted-128/data"])
