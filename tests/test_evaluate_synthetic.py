"""Testing synthetic models as a user does it: accuracy, excess loss, and which tokens decide."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sparsity_length.programs import evaluate_synthetic
from test_train_synthetic import OF_CUES, train

from sparsity_length.cli import InputError
from sparsity_length.results.read import Results
from sparsity_length.synthetic.tasks import TASKS, of_test_examples
from sparsity_length.synthetic.train import find_task_run, load_task_lm

NUM_EXAMPLES = 20
DEPENDENCIES = ("--dependencies", "--num-examples", "3")


def evaluate(folder: Path, results: Path, task: str, *words: str) -> None:
    given = ["--task", task, "--checkpoints", str(folder), "--results", str(results)]
    given += ["--num-examples", str(NUM_EXAMPLES)]
    evaluate_synthetic.STAGE([*given, *words])


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("testing") / "copy-predicted-seed0"
    train(folder)
    return folder


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("testing") / "variable_assignment-predicted-seed0"
    train(folder, task="variable_assignment")
    return folder


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("testing") / "sparse_parity-pose-seed0"
    train(folder, "largest_sparsity=2", "num_position_ids=40", task="sparse_parity", positions="pose")
    return folder


def test_evaluation_writes_a_row_a_cell_and_keeps_it(copying: Path, tmp_path: Path) -> None:
    evaluate(copying, tmp_path, "copy", "--sizes", "4", "2")
    rows = Results(tmp_path).frame("synthetic_accuracy")
    assert rows[["model", "task", "positions", "size", "num_tokens"]].to_numpy().tolist() == [
        ["copy-predicted-seed0", "copy", "predicted", 2, 5],
        ["copy-predicted-seed0", "copy", "predicted", 4, 9],
    ]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    evaluate(copying, tmp_path, "copy", "--sizes", "2", "4")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == before
    with pytest.raises(InputError):  # else shards of both would be mixed
        evaluate(copying, tmp_path, "copy", "--sizes", "2")


def test_sizes_without_room_for_a_k_are_left_out(parity: Path, tmp_path: Path) -> None:
    evaluate(parity, tmp_path, "sparse_parity", "--sizes", "4", "8", "--sparsities", "1", "4")
    rows = Results(tmp_path).frame("synthetic_accuracy")
    assert rows[["size", "sparsity"]].to_numpy().tolist() == [[4, 1], [8, 1], [8, 4]]
    examples = Results(tmp_path).frame("synthetic_examples")
    assert examples.groupby(["size", "sparsity"])["is_right"].mean().tolist() == rows["exact_match"].tolist()
    for row in examples.to_dict("records"):
        # An answer is right if it is the parity of the bits that are kept.
        assert row["decisive_tokens"].split()[::2] == ["*"] * row["sparsity"]
        parity_of_bits = sum(map(int, row["decisive_tokens"].split()[1::2])) % 2
        assert row["is_right"] == (row["answer"] == str(parity_of_bits))


@pytest.mark.parametrize("positions", ["contiguous", "coupled"])
def test_excess_loss_of_cues(tmp_path: Path, positions: str) -> None:
    """Each test example again, by the model's whole pass and the sum over answers written out."""
    folder = tmp_path / "run"
    task = "cues_2"
    train(folder, *OF_CUES, task=task, positions=positions)
    evaluate(folder, tmp_path / "results", task, "--sizes", "32", "64")
    found = Results(tmp_path / "results").frame("synthetic_accuracy").to_dict("records")
    examples = Results(tmp_path / "results").frame("synthetic_examples")
    model = load_task_lm(*find_task_run(folder, task), torch.device("cpu"))
    for row in found:
        generator = of_test_examples(row["size"], None)
        drawn = TASKS[task].draw(row["size"], [None] * NUM_EXAMPLES, generator)
        token_ids_BS, position_ids_BS = model.config.ids_of(drawn, generator, in_testing=True)
        tokens_BS = torch.from_numpy(token_ids_BS)
        ids_BS = torch.from_numpy(position_ids_BS)
        with torch.inference_mode():  # only differences of IDs are seen: another start is as good
            hidden_BSD, _ = model._run(tokens_BS[:, :-1], ids_BS[:, :-1], None, None)
            logits_BV = model.logits(hidden_BSD[:, -1])
        log_q_BV = logits_BV.double().log_softmax(-1).numpy()
        excess = [
            sum(np.exp(p) * (p - q) for p, q in zip(*pair, strict=True) if np.isfinite(p))
            for pair in zip([example.log_posterior_V for example in drawn], log_q_BV, strict=True)
        ]
        assert row["excess_loss"] == pytest.approx(np.mean(excess), abs=1e-5)
        of_size = examples[examples["size"] == row["size"]]
        assert of_size["excess_loss"].tolist() == pytest.approx(excess, abs=1e-5)
        for tokens_S, distances in zip(token_ids_BS, of_size["distances"], strict=True):
            cues = np.flatnonzero((tokens_S[: row["size"]] >= 16) & (tokens_S[: row["size"]] < 128))
            assert list(distances) == (row["size"] - 1 - cues).tolist()
        assert row["excess_loss_error"] == pytest.approx(np.std(excess) / NUM_EXAMPLES**0.5, abs=1e-5)
        assert row["best_loss"] == pytest.approx(np.log(2))


def test_rows_hold_the_generators_truth(chains: Path, tmp_path: Path) -> None:
    words = ["--sizes", "4", "5", *DEPENDENCIES, "--largest-k", "1", "--rules", "leave_one_out", "random"]
    evaluate(chains, tmp_path, "variable_assignment", *words)
    rows = Results(tmp_path).frame("found_dependencies")
    for size in (4, 5):
        generator = of_test_examples(size, None)
        drawn = TASKS["variable_assignment"].draw(size, [None] * 3, generator)
        of_size = rows[rows["size"] == size]
        for (example, target), of_target in of_size.groupby(["example_index", "target_index"]):
            num_far = drawn[example].num_prompt_tokens + target - 2
            truth = {place for place in drawn[example].dependencies[target] if place < num_far}
            assert set(of_target["num_dependencies"]) == {len(truth)}
            assert set(of_target["num_distant_tokens"]) == {num_far}
            assert (of_target["context_position"] < num_far).all()
            assert of_target["rank"].max() >= len(truth)
            assert of_target["is_dependency"].equals(of_target["context_position"].isin(truth))
        # of each restated assignment only the last token depends on what is far
        assert set(of_size["target_index"] % 3) == {2}


def test_neighbors_of_dape_are_not_left_out(tmp_path: Path) -> None:
    train(tmp_path / "run", positions="dape_nope")
    with pytest.raises(InputError, match="a masked token is not one left out"):
        evaluate(tmp_path / "run", tmp_path / "results", "copy", "--sizes", "5", *DEPENDENCIES)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--task", "copy"], "not on copy"),
        (["--sizes", "200", "--sparsities", "1"], "num_position_ids"),
        (["--sparsities", "6"], "has k up to 5"),
        ([*DEPENDENCIES, "--sizes", "2"], "distant context"),
        (["--checkpoints", "."], "no model at"),
    ],
)
def test_bad_input_is_refused_before_a_result_is_written(
    parity: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    given = ["--sizes", "10", "--sparsities", "1"]
    with pytest.raises(InputError, match=sentence):
        evaluate(parity, tmp_path / "results", "sparse_parity", *given, *words)
    assert not list(tmp_path.rglob("*.parquet"))
