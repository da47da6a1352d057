"""The synthetic stages as a user runs them: resumed to the same bytes, tested, refused in a sentence."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sparsity_length.programs import evaluate_synthetic, train_synthetic
from tiny_task import TINY_TASK

from sparsity_length.cli import InputError
from sparsity_length.results.read import Results
from sparsity_length.synthetic.config import load_task_config
from sparsity_length.synthetic.tasks import TASKS, of_test_examples
from sparsity_length.synthetic.train import TaskTrainer, find_task_run, is_learnt, load_task_lm

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "olmo_configs" / "synthetic" / "small.yaml"
TINY = [*TINY_TASK, "save_interval=2", "eval_interval=3"]


def train(folder: Path, *overrides: str, task: str = "copy", positions: str = "predicted") -> None:
    words = [str(CONFIG), "--task", task, "--positions", positions, "--save-folder", str(folder)]
    train_synthetic.STAGE([*words, *TINY, *overrides])


def fingerprint(folder: Path) -> dict[str, str]:
    """SHA-256 of the last checkpoint's weights and of the metrics."""
    files = {
        "weights": folder / "step6-unsharded" / "model.pt",
        "metrics": folder / "metrics.jsonl",
    }
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic") / "copy-predicted-seed0"
    train(folder)
    return folder


@pytest.mark.parametrize("architecture", [pytest.param("gpt_neox", marks=pytest.mark.slow), "olmo"])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, architecture: str) -> None:
    of_architecture = f"model.architecture={architecture}"
    train(tmp_path / "whole", of_architecture)
    config = load_task_config(CONFIG, [*TINY, of_architecture], task="copy", positions="predicted")
    stopped = TaskTrainer(config, tmp_path / "stopped", torch.device("cpu"))
    stopped.ask_to_stop()
    assert stopped.run().name == "step1-unsharded"
    train(tmp_path / "stopped", of_architecture)
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")
    shutil.rmtree(tmp_path / "stopped" / "step6-unsharded")  # from step 4, with what was measured after 3
    train(tmp_path / "stopped", of_architecture)
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")


@pytest.mark.parametrize(
    ("task", "positions", "overrides", "words"),
    [
        ("sparse_parity", "pose", ["largest_sparsity=11"], "has k up to 10, by largest_size"),
        ("sparse_parity", "predicted", [], "unknown positions of sparse_parity"),
        ("sparse_first", "coupled", [], "unknown positions of sparse_first"),
        ("copy", "sparse", [], "model.num_keys is None; positions sparse need one"),
        ("copy", "alibi", ["model.num_keys=8"], "model.num_keys is 8; positions sparse need one"),
        ("cues_1", "predicted", [], "unknown positions of cues_1"),
        ("sparse_parity", "pose", ["smallest_size=9"], "size 9 "),
        ("copy", "pose", ["largest_sparsity=2"], "task copy has k up to 0"),
        ("copy", "pose", ["num_position_ids=20"], "need 21 or more position IDs, but num_position_ids is 20"),
        ("copi", "pose", [], "did you mean 'copy'"),
        ("copy", "pose", ["largest_sise=4"], "Key 'largest_sise' not in"),
        ("copy", "pose", ["learning_rate=nan"], "learning_rate is nan; it must be above 0"),
        ("copy", "pose", ["sizes_per_step=0"], "sizes_per_step is 0; it must be above 0"),
        ("copy", "pose", ["batch_size=9"], "batch_size 9 is not divisible by sizes_per_step 2"),
        *(
            ("copy", "predicted", [override], override.partition("=")[0].removeprefix("model."))
            for override in ("num_steps=many", "seed=[1")
        ),
        ("copy", "pose", ["stop_at_excess_loss=0.1"], "the best loss of task copy is not known"),
        (
            "copy",
            "pose",
            ["stop_at_accuracy=99.5"],
            "stop_at_accuracy is 99.5; it must be above 0, at most 1",
        ),
    ],
)
def test_bad_settings(tmp_path: Path, task: str, positions: str, overrides: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        train(tmp_path / "run", *overrides, task=task, positions=positions)
    assert not (tmp_path / "run").exists()


def test_another_run_is_not_continued(trained: Path) -> None:
    with pytest.raises(InputError, match="positions was 'predicted', now 'coupled'"):
        train(trained, positions="coupled")
    with pytest.raises(InputError, match="task was 'copy', now 'addition'"):
        train(trained, task="addition")


OF_CUES = [
    "model.architecture=olmo",
    "smallest_size=32",
    "largest_size=32",
    "sizes_per_step=1",
    "num_position_ids=96",
]


def test_a_run_ends_once_its_task_is_known(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, *OF_CUES, "stop_at_excess_loss=100", task="cues_1", positions="contiguous")
    assert sorted(path.name for path in run.glob("step*")) == ["step2-unsharded", "step3-unsharded"]
    assert is_learnt(*find_task_run(run, "cues_1"))
    train(tmp_path / "other", *OF_CUES, "stop_at_excess_loss=1e-6", task="cues_1", positions="contiguous")
    assert (tmp_path / "other" / "step6-unsharded").is_dir()
    assert not is_learnt(*find_task_run(tmp_path / "other", "cues_1"))


def test_a_run_ends_at_an_accuracy(tmp_path: Path) -> None:
    of_parity = ["largest_sparsity=5", "sizes_per_step=1", "eval_num_examples=200"]
    for share, last in ((0.1, "step3-unsharded"), (1.0, "step6-unsharded")):
        run = tmp_path / str(share)
        for _ in range(2):  # the second finds that it has ended
            train(run, *of_parity, f"stop_at_accuracy={share}", task="sparse_parity", positions="pose")
        assert max(path.name for path in run.glob("step*")) == last
        assert is_learnt(*find_task_run(run, "sparse_parity")) == (share == 0.1)


NUM_EXAMPLES = 20
DEPENDENCIES = ("--dependencies", "--num-examples", "3")


def evaluate(folder: Path, results: Path, task: str, *words: str) -> None:
    given = ["--task", task, "--checkpoints", str(folder), "--results", str(results)]
    given += ["--num-examples", str(NUM_EXAMPLES)]
    evaluate_synthetic.STAGE([*given, *words])


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


def test_evaluation_writes_a_row_a_cell_and_keeps_it(trained: Path, tmp_path: Path) -> None:
    evaluate(trained, tmp_path, "copy", "--sizes", "4", "2")
    rows = Results(tmp_path).frame("synthetic_accuracy")
    assert rows[["model", "task", "positions", "size", "num_tokens"]].to_numpy().tolist() == [
        ["copy-predicted-seed0", "copy", "predicted", 2, 5],
        ["copy-predicted-seed0", "copy", "predicted", 4, 9],
    ]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    evaluate(trained, tmp_path, "copy", "--sizes", "2", "4")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == before
    with pytest.raises(InputError):  # else shards of both would be mixed
        evaluate(trained, tmp_path, "copy", "--sizes", "2")


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
