"""The synthetic stages as a user runs them: resumed to the same bytes, tested, refused in a sentence."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sparsity_length.programs import evaluate_synthetic, train_synthetic
from tiny_task import TINY_TASK

from sparsity_length.cli import InputError
from sparsity_length.results.read import Results
from sparsity_length.synthetic import train as train_module
from sparsity_length.synthetic.config import load_task_config
from sparsity_length.synthetic.tasks import TASKS, of_test_examples
from sparsity_length.synthetic.train import TaskTrainer, find_task_run, is_learnt, load_task_lm

CONFIG = Path(__file__).resolve().parents[1] / "olmo_configs" / "synthetic" / "small.yaml"
TINY = [*TINY_TASK, "save_interval=2", "eval_interval=3"]


def train(folder: Path, *overrides: str, task: str = "copy", positions: str = "predicted") -> None:
    words = ["--task", task, "--positions", positions, "--save-folder", str(folder), *TINY]
    train_synthetic.STAGE([str(CONFIG), *words, *overrides])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function training a task, each run once; the run's folder."""

    @cache
    def run(task: str, positions: str, *overrides: str) -> Path:
        folder = tmp_path_factory.mktemp("runs") / f"{task}-{positions}-seed0"
        train(folder, *overrides, task=task, positions=positions)
        return folder

    return run


PARITY = ("sparse_parity", "pose", "largest_sparsity=2", "num_position_ids=40")


@pytest.mark.parametrize("architecture", [pytest.param("gpt_neox", marks=pytest.mark.slow), "olmo"])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, architecture: str) -> None:
    """Stopped after step 1; and from step 4, with what was measured after 3."""
    words = ["largest_size=3", f"model.architecture={architecture}"]
    stopped = tmp_path / "stopped"
    config = load_task_config(CONFIG, [*TINY, *words], task="copy", positions="predicted")
    trainer = TaskTrainer(config, stopped, torch.device("cpu"))
    trainer.ask_to_stop()
    assert trainer.run().name == "step1-unsharded"
    train(tmp_path / "whole", *words)
    for _ in range(2):
        train(stopped, *words)
        for name in ("metrics.jsonl", "step6-unsharded/model.pt"):
            assert (stopped / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        shutil.rmtree(stopped / "step6-unsharded")


@pytest.mark.parametrize(
    ("task", "positions", "overrides", "words"),
    [
        ("sparse_parity", "pose", ["largest_sparsity=11"], "has k up to 10, by largest_size"),
        ("sparse_parity", "predicted", [], "sparse_parity has no predicted position IDs"),
        ("copy", "sparse", [], "model.num_keys is None; positions sparse need one"),
        ("copy", "alibi", ["model.num_keys=8"], "model.num_keys is 8; positions sparse need one"),
        ("cues_1", "predicted", [], "cues_1 has no predicted position IDs"),
        ("sparse_parity", "pose", ["smallest_size=9"], "size 9 "),
        ("variable_assignment", "pose", ["largest_size=300"], "size 300 "),
        ("cues_4", "contiguous", ["smallest_size=2", "largest_size=2"], "size 2 "),
        ("copy", "pose", ["largest_sparsity=2"], "task copy has k up to 0"),
        ("copy", "pose", ["num_position_ids=20"], "need 21 or more position IDs, but num_position_ids is 20"),
        ("copi", "pose", [], "did you mean 'copy'"),
        ("copy", "pose", ["learning_rate=nan"], "learning_rate is nan; it must be above 0"),
        ("copy", "pose", ["sizes_per_step=0"], "sizes_per_step is 0; it must be above 0"),
        ("copy", "pose", ["batch_size=9"], "batch_size 9 is not divisible by sizes_per_step 2"),
        ("copy", "pose", ["stop_at_excess_loss=0.1"], "the best loss of task copy is not known"),
        (
            "copy",
            "pose",
            ["stop_at_accuracy=99.5"],
            "stop_at_accuracy is 99.5; it must be above 0 and at most 1",
        ),
        ("cues_1", "contiguous", ["stop_at_accuracy=0.9"], "tasks cues_. have stop_at_excess_loss instead"),
        ("copy", "coupled", ["spread_of_coupled_ids=randomized"], "unknown spread_of_coupled_ids"),
        ("copy", "pose", ["num_steps=0"], "num_steps is 0; it must be above 0"),
        # The largest k needs most, three tokens for each; others need less, such as the one drawn first.
        (
            "variable_assignment_hops",
            "pose",
            ["largest_sparsity=6", "num_position_ids=37"],
            "need 38 or more position IDs",
        ),
    ],
)
def test_bad_settings(tmp_path: Path, task: str, positions: str, overrides: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        train(tmp_path / "run", *overrides, task=task, positions=positions)
    assert not (tmp_path / "run").exists()


def test_another_run_is_not_continued(trained: Callable[..., Path]) -> None:
    train(trained("copy", "predicted"), "eval_interval=2")  # which is no other run
    with pytest.raises(InputError, match="positions was 'predicted', now 'coupled'"):
        train(trained("copy", "predicted"), positions="coupled")


OF_CUES = [
    "model.architecture=olmo",
    "smallest_size=32",
    "largest_size=32",
    "sizes_per_step=1",
    "num_position_ids=96",
]
OF_PARITY = ["largest_sparsity=5", "sizes_per_step=1", "eval_num_examples=60"]


@pytest.mark.parametrize(
    ("task", "positions", "overrides", "last"),
    [
        ("cues_1", "contiguous", [*OF_CUES, "stop_at_excess_loss=100"], 3),
        ("cues_1", "contiguous", [*OF_CUES, "stop_at_excess_loss=1e-6"], 6),
        ("sparse_parity", "pose", [*OF_PARITY, "stop_at_accuracy=0.1"], 3),
        ("sparse_parity", "pose", [*OF_PARITY, "stop_at_accuracy=1.0"], 6),
    ],
)
def test_a_run_ends_once_its_task_is_known(
    task: str, positions: str, overrides: list[str], last: int, tmp_path: Path
) -> None:
    """Of six steps, measured after every third."""
    for _ in range(2):  # the second finds that it has ended
        train(tmp_path, *overrides, task=task, positions=positions)
    assert max(path.name for path in tmp_path.glob("step*")) == f"step{last}-unsharded"
    assert is_learnt(*find_task_run(tmp_path, task)) == (last == 3)
    with pytest.raises(InputError, match="eval_interval was 3, now 2"):  # it might have ended elsewhere
        train(tmp_path, *overrides, "eval_interval=2", task=task, positions=positions)


def test_a_run_goes_on_if_other_examples_do_not_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(trainer: TaskTrainer, drawn_as: int) -> dict[str, float]:
        return {"exact_match": float(drawn_as == 0)}

    monkeypatch.setattr(TaskTrainer, "_measured", measured)
    train(tmp_path, "stop_at_accuracy=0.5")
    assert not is_learnt(*find_task_run(tmp_path, "copy"))
    assert (tmp_path / "step6-unsharded").is_dir()


def test_every_k_is_measured_where_a_draw_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module, "accuracy", mock.Mock(wraps=train_module.accuracy))
    train(tmp_path, "num_steps=1", "smallest_size=6", task="variable_assignment_hops", positions="pose")
    drawn = [call.args[1][0] for call in train_module.accuracy.call_args_list]
    # Three tokens of the response for each assignment of the chain.
    assert {len(one.dependencies) for one in drawn} == {3, 6, 9}


@pytest.mark.parametrize("text", ["tasks:", "tasks: {copy: }"])
def test_a_file_without_tasks(text: str, tmp_path: Path) -> None:
    (tmp_path / "half.yaml").write_text(text)
    assert load_task_config(tmp_path / "half.yaml", [], task="copy", positions="pose").num_steps == 2000


DEPENDENCIES = ("--dependencies", "--num-examples", "3")


def evaluate(folder: Path, results: Path, task: str, *words: str) -> None:
    paths = ["--checkpoints", str(folder), "--results", str(results)]
    evaluate_synthetic.STAGE(["--task", task, *paths, "--num-examples", "20", *words])


def test_evaluation_writes_a_row_a_cell_and_keeps_it(trained: Callable[..., Path], tmp_path: Path) -> None:
    run = trained(*PARITY)
    evaluate(run, tmp_path, "sparse_parity", "--sizes", "8", "4", "--sparsities", "4", "1")
    rows = Results(tmp_path).frame("synthetic_accuracy")
    of_run = ["sparse_parity-pose-seed0", "sparse_parity", "pose"]
    # A size without room for a k is left out.
    assert rows[["model", "task", "positions", "size", "sparsity", "num_tokens"]].to_numpy().tolist() == [
        [*of_run, 4, 1, 5],
        [*of_run, 8, 1, 9],
        [*of_run, 8, 4, 9],
    ]
    with mock.patch("sparsity_length.synthetic.testing._measure", side_effect=AssertionError):
        evaluate(run, tmp_path, "sparse_parity", "--sizes", "4", "8", "--sparsities", "1", "4")
    with pytest.raises(InputError):  # else shards of both would be mixed
        evaluate(run, tmp_path, "sparse_parity", "--sizes", "4", "--sparsities", "1")
    examples = Results(tmp_path).frame("synthetic_examples")
    assert examples.groupby(["size", "sparsity"])["is_right"].mean().tolist() == rows["exact_match"].tolist()
    for row in examples.itertuples():
        # Each kept bit with its mark; an answer is right if it is their parity.
        assert row.decisive_tokens.count("*") == row.sparsity
        assert row.is_right == (row.answer == str(row.decisive_tokens.count("1") % 2))


@pytest.mark.parametrize("positions", ["contiguous", "coupled"])
def test_excess_loss_of_cues(tmp_path: Path, positions: str) -> None:
    """Each test example again, by the model's whole pass and SciPy's relative entropy."""
    train(tmp_path / "run", *OF_CUES, task="cues_2", positions=positions)
    evaluate(tmp_path / "run", tmp_path, "cues_2", "--sizes", "64")
    (row,) = Results(tmp_path).frame("synthetic_accuracy").itertuples()
    examples = Results(tmp_path).frame("synthetic_examples")
    model = load_task_lm(*find_task_run(tmp_path / "run", "cues_2"), torch.device("cpu"))
    generator = of_test_examples(64, None)
    drawn = TASKS["cues_2"].draw(64, [None] * 20, generator)
    tokens_BS, ids_BS = map(torch.from_numpy, model.config.ids_of(drawn, generator, in_testing=True))
    # Only differences of IDs are seen: another start is as good.
    states_BD = model.hidden_states(tokens_BS[:, :-1], ids_BS[:, :-1], None, None)[:, -1]
    posterior_BV = np.exp([example.log_posterior_V for example in drawn])
    excess_B = entropy(posterior_BV, model.logits(states_BD).double().softmax(-1), axis=1)
    assert examples["excess_loss"].tolist() == pytest.approx(excess_B, abs=1e-5)
    assert row.excess_loss == pytest.approx(excess_B.mean(), abs=1e-5)
    assert row.best_loss == pytest.approx(np.log(2))
    assert row.excess_loss_error == pytest.approx(excess_B.std() / 20**0.5, abs=1e-5)
    cues_BS = (tokens_BS[:, :64] >= 16) & (tokens_BS[:, :64] < 128)
    for cues_S, distances in zip(cues_BS, examples["distances"], strict=True):
        assert list(distances) == (63 - cues_S.nonzero()[:, 0]).tolist()


def test_rows_hold_the_generators_truth(tmp_path: Path) -> None:
    train(tmp_path / "run", "num_steps=1", "largest_size=2", task="variable_assignment")
    words = ["--sizes", "5", *DEPENDENCIES, "--largest-k", "1", "--rules", "leave_one_out", "random"]
    evaluate(tmp_path / "run", tmp_path, "variable_assignment", *words)
    rows = Results(tmp_path).frame("found_dependencies")
    drawn = TASKS["variable_assignment"].draw(5, [None] * 3, of_test_examples(5, None))
    for (example, target), of_target in rows.groupby(["example_index", "target_index"]):
        num_far = drawn[example].num_prompt_tokens + target - 2
        truth = {place for place in drawn[example].dependencies[target] if place < num_far}
        assert (of_target["num_dependencies"] == len(truth)).all()
        assert (of_target["num_distant_tokens"] == num_far).all()
        assert (of_target["context_position"] < num_far).all()
        assert of_target["rank"].max() >= len(truth)
        assert of_target["is_dependency"].equals(of_target["context_position"].isin(truth))
    # Of each restated assignment only the last token depends on what is far.
    assert set(rows["target_index"] % 3) == {2}


def test_neighbors_of_dape_are_not_left_out(tmp_path: Path) -> None:
    train(tmp_path / "run", "num_steps=3", "largest_size=2", positions="dape_nope")
    with pytest.raises(InputError, match="a masked token is not one left out"):
        evaluate(tmp_path / "run", tmp_path / "results", "copy", "--sizes", "5", *DEPENDENCIES)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--task", "sparse_or"], "not on sparse_or"),
        (["--sizes", "200", "--sparsities", "1"], "num_position_ids"),
        (["--sparsities", "6"], "has k up to 5"),
        ([*DEPENDENCIES, "--sizes", "2"], "distant context"),
        (["--checkpoints", "."], "no model at"),
    ],
)
def test_bad_input_is_refused_before_a_result_is_written(
    trained: Callable[..., Path], tmp_path: Path, words: list[str], sentence: str
) -> None:
    words = ["--sizes", "10", "--sparsities", "1", *words]
    with pytest.raises(InputError, match=sentence):
        evaluate(trained(*PARITY), tmp_path, "sparse_parity", *words)
    assert not list(tmp_path.rglob("*.parquet"))
