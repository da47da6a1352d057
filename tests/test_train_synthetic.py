"""The synthetic stages as a user runs them: resumed to the same bytes, refused in a sentence."""

import hashlib
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from pipeline import evaluate_synthetic, train_synthetic
from pipeline.cli import InputError
from pipeline.results.read import read_artefact, read_settings
from pipeline.synthetic.accuracy import Answers
from pipeline.synthetic.config import load_task_config
from pipeline.synthetic.evaluation import test_examples as held_out_examples
from pipeline.synthetic.tasks import ExampleBatch, draw_batch, task_called
from pipeline.synthetic.train import TaskTrainer, find_task_run
from pipeline.training.loop import StopRequest

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "olmo_configs" / "synthetic" / "small.yaml"
TINY = [
    "model.width=16", "model.num_heads=1", "model.num_layers=1", "batch_size=8", "num_steps=6",
    "warm_up_steps=2", "learning_rate=2e-3", "save_interval=2", "eval_interval=3", "eval_num_examples=8",
]  # fmt: skip


def train(folder: Path, *overrides: str, task: str = "copy", positions: str = "predicted") -> None:
    words = [str(CONFIG), "--task", task, "--positions", positions, "--save-folder", str(folder)]
    train_synthetic.main(train_synthetic.parser().parse_args([*words, *TINY, *overrides]))


def evaluate(folder: Path, results: Path, *words: str, task: str = "copy") -> None:
    given = ["--task", task, "--checkpoints", str(folder), "--results", str(results), "--num-examples", "20"]
    evaluate_synthetic.main(evaluate_synthetic.parser().parse_args([*given, *words]))


def fingerprint(folder: Path) -> dict[str, str]:
    """SHA-256 of the last checkpoint's weights and of the metrics."""
    files = {
        "weights": folder / "step6-unsharded" / "model.pt",
        "metrics": folder / "synthetic_training.parquet",
    }
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic") / "copy-predicted-seed0"
    train(folder)
    return folder


@pytest.mark.parametrize("architecture", ["gpt_neox", "olmo"])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, architecture: str) -> None:
    of_architecture = f"model.architecture={architecture}"
    train(tmp_path / "whole", of_architecture)
    config = load_task_config(CONFIG, [*TINY, of_architecture], task="copy", positions="predicted")
    asked = StopRequest()
    asked.signal_name = signal.Signals.SIGTERM.name
    stopped = TaskTrainer(config, tmp_path / "stopped", torch.device("cpu"), asked)
    assert stopped.run().name == "step1-unsharded"
    train(tmp_path / "stopped", of_architecture)
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")
    shutil.rmtree(tmp_path / "stopped" / "step6-unsharded")  # from step 4, with what was measured after 3
    train(tmp_path / "stopped", of_architecture)
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")


def test_the_seed_decides(tmp_path: Path, trained: Path) -> None:
    train(tmp_path / "same")
    train(tmp_path / "other", "seed=1")
    assert fingerprint(tmp_path / "same") == fingerprint(trained)
    assert fingerprint(tmp_path / "other")["weights"] != fingerprint(trained)["weights"]


def test_the_spread_of_coupled_ids_changes_training_and_not_testing(tmp_path: Path, trained: Path) -> None:
    train(tmp_path / "close", "spread_of_coupled_ids=contiguous")
    assert fingerprint(tmp_path / "close")["weights"] != fingerprint(trained)["weights"]
    batch = draw_batch(task_called("copy"), 5, [None] * 50, np.random.default_rng(0))
    config = find_task_run(trained, "copy").config
    assert config.spread_of_coupled_ids == "pose"
    ids_BS = config.position_ids(batch, np.random.default_rng(0), in_testing=True)
    assert batch.coupled_ids_BS is not None
    assert (ids_BS - ids_BS.min(axis=1, keepdims=True) == batch.coupled_ids_BS).all()


def test_the_spread_is_no_setting_of_other_schemes() -> None:
    config = load_task_config(CONFIG, TINY, task="copy", positions="pose")
    assert config.spread_of_coupled_ids == "contiguous"


def test_metrics_are_a_row_a_step(trained: Path) -> None:
    metrics = pd.read_parquet(trained / "synthetic_training.parquet")
    assert metrics["step"].tolist() == [1, 2, 3, 4, 5, 6]
    # Linear: half of 2e-3 at step 1 of 2 warm-up steps, 2e-3 at 2, down by quarters to 0 at 6.
    expected = [1e-3, 2e-3, 1.5e-3, 1e-3, 0.5e-3, 0.0]
    assert metrics["learning_rate"].round(9).tolist() == expected
    assert metrics["exact_match"].notna().tolist() == [False, False, True, False, False, True]
    assert (metrics["loss"] > 0).all() and (metrics["position_id_loss"] > 0).all()


def test_in_distribution_means_every_training_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*TINY, "eval_num_examples=25"]
    config = load_task_config(CONFIG, overrides, task="copy", positions="predicted")
    trainer = TaskTrainer(config, tmp_path, torch.device("cpu"), StopRequest())
    drawn: list[tuple[int, int]] = []

    def right_up_to_size_5(_: object, batch: ExampleBatch, *args: object, **kwargs: object) -> Answers:
        num_examples, size = len(batch.token_ids_BS), batch.token_ids_BS.shape[1] - batch.num_prompt_tokens
        drawn.append((size, num_examples))
        is_right = np.full((num_examples, 1), size <= 5)
        return Answers(np.zeros_like(is_right), is_right, is_right)

    monkeypatch.setattr("pipeline.synthetic.train.answers", right_up_to_size_5)
    assert trainer._measure() == {"exact_match": 0.5}  # of the sizes 1 to 10 of small.yaml
    assert drawn == [(size, 3) for size in range(1, 11)]


def test_sharpened_attention_is_a_setting_of_its_own(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluate(trained, tmp_path, "--sizes", "3")
    with pytest.raises(InputError):  # else shards of both would be mixed
        evaluate(trained, tmp_path, "--sizes", "3", "--attention-scale", "2")
    evaluate(trained, tmp_path / "sharp", "--sizes", "3", "--attention-scale", "2")
    settings = read_settings(tmp_path / "sharp", "evaluate_synthetic")
    assert {found["attention_scale"] for found in settings.values()} == {2.0}


def test_given_ids_have_no_loss(tmp_path: Path) -> None:
    train(tmp_path, positions="coupled")
    metrics = pd.read_parquet(tmp_path / "synthetic_training.parquet")
    assert metrics["position_id_loss"].isna().all()


def test_evaluation_writes_a_row_a_cell_and_keeps_it(trained: Path, tmp_path: Path) -> None:
    evaluate(trained, tmp_path, "--sizes", "4", "2")
    rows = read_artefact(tmp_path, "synthetic_accuracy")
    assert rows[["model", "task", "positions", "size", "num_tokens"]].to_numpy().tolist() == [
        ["copy-predicted-seed0", "copy", "predicted", 2, 5],
        ["copy-predicted-seed0", "copy", "predicted", 4, 9],
    ]
    assert not rows["is_learnt"].any() and (rows["exact_match"] < 0.5).all()
    assert (rows["exact_match_low"] <= rows["exact_match"]).all()
    assert rows["position_id_accuracy"].between(0, 1).all() and rows["sparsity"].isna().all()
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    evaluate(trained, tmp_path, "--sizes", "2", "4")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == files
    with pytest.raises(InputError, match="sizes was"):
        evaluate(trained, tmp_path, "--sizes", "2")


def test_sizes_without_room_for_a_k_are_left_out(tmp_path: Path) -> None:
    train(tmp_path / "run", task="sparse_parity", positions="pose")
    words = ["--sizes", "4", "8", "--sparsities", "1", "4"]
    evaluate(tmp_path / "run", tmp_path / "results", *words, task="sparse_parity")
    rows = read_artefact(tmp_path / "results", "synthetic_accuracy")
    assert rows[["size", "sparsity"]].to_numpy().tolist() == [[4, 1], [8, 1], [8, 4]]
    examples = read_artefact(tmp_path / "results", "synthetic_examples")
    assert examples.groupby(["size", "sparsity"])["is_right"].mean().tolist() == rows["exact_match"].tolist()
    for row in examples.to_dict(
        "records"
    ):  # an answer is right if it is the parity of the bits that are kept
        assert row["decisive_tokens"].split()[::2] == ["*"] * row["sparsity"]
        parity = sum(map(int, row["decisive_tokens"].split()[1::2])) % 2
        assert row["is_right"] == (row["answer"] == str(parity))


@pytest.mark.parametrize(
    ("task", "positions", "overrides", "words"),
    [
        ("sparse_parity", "predicted", [], "need coupled position IDs, which task sparse_parity has none of"),
        ("sparse_parity", "pose", ["largest_sparsity=11"], "has k from 1 to 10, by largest_size"),
        ("sparse_parity", "pose", ["smallest_size=9", "size_step=1"], "size 9 is odd"),
        ("copy", "pose", ["largest_sparsity=2"], "task copy has no k"),
        ("copy", "pose", ["num_position_ids=20"], "need 21 or more position IDs, but num_position_ids is 20"),
        ("copi", "pose", [], "did you mean 'copy'"),
        ("copy", "pose", ["largest_sise=4"], "largest_sise: Key 'largest_sise' not in"),
        ("copy", "pose", ["learning_rate=nan"], "learning_rate is nan; it must be above 0"),
        ("copy", "pose", ["sizes_per_step=0"], "sizes_per_step is 0; it must be above 0"),
        ("copy", "pose", ["model.rotary_fraction=1.5"], "rotates at most all of a head"),
        ("copy", "pose", ["batch_size=9"], "batch_size 9 is not divisible by sizes_per_step 2"),
        ("copy", "pose", ["warm_up_steps=6"], "must be below num_steps, 6"),
        *(
            ("copy", "predicted", [override], override.partition("=")[0].removeprefix("model."))
            for override in (
                "model.num_heads=7", "num_steps=many", "seed=[1", "model.attention_scaling=log",
            )
        ),
        ("copy", "pose", ["model.attention_scaling=learnt"], "set model.architecture=olmo, which has it"),
        ("copy", "pose", ["stop_at_excess_loss=0.1"], "the best loss of task copy is not known"),
    ],
)  # fmt: skip
def test_bad_settings(tmp_path: Path, task: str, positions: str, overrides: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        train(tmp_path / "run", *overrides, task=task, positions=positions)
    assert not (tmp_path / "run").exists()


def test_another_run_is_not_continued(trained: Path) -> None:
    with pytest.raises(InputError, match="positions was 'predicted', now 'coupled'"):
        train(trained, positions="coupled")
    with pytest.raises(InputError, match="task was 'copy', now 'addition'"):
        train(trained, task="addition")


def test_bad_evaluations(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="was trained on the task copy, not on addition"):
        evaluate(trained, tmp_path, "--sizes", "2", task="addition")
    with pytest.raises(InputError, match="size 200: examples of this size need 200 or more position IDs"):
        evaluate(trained, tmp_path, "--sizes", "2", "200")
    with pytest.raises(InputError, match="copy has no k"):
        evaluate(trained, tmp_path, "--sizes", "2", "--sparsities", "1")
    with pytest.raises(InputError, match="no checkpoint in"):
        evaluate(tmp_path, tmp_path, "--sizes", "2")
    assert list(tmp_path.iterdir()) == []


OF_SIGNS = [
    "model.architecture=olmo", "smallest_size=32", "largest_size=32", "sizes_per_step=1",
    "num_position_ids=96",
]  # fmt: skip


@pytest.mark.parametrize("positions", ["contiguous", "coupled"])
def test_excess_loss_and_attention_on_signs(tmp_path: Path, positions: str) -> None:
    """Of each test example again, by the model's whole pass and the sum over answers written out."""
    folder, task = tmp_path / "run", "signs_2"
    train(folder, *OF_SIGNS, "model.attention_scaling=learnt", task=task, positions=positions)
    evaluate(folder, tmp_path / "results", "--sizes", "32", "64", task=task)
    found = read_artefact(tmp_path / "results", "synthetic_accuracy").to_dict("records")
    examples = read_artefact(tmp_path / "results", "synthetic_examples")
    run = find_task_run(folder, task)
    model = run.load(torch.device("cpu"))
    assert model.position_ids is None
    for row in found:
        batch, generator = held_out_examples(task_called(task), (row["size"], None), 20, 0)
        ids_BS = torch.from_numpy(run.config.position_ids(batch, generator, in_testing=True))
        with torch.inference_mode():  # only differences of IDs are seen: another start is as good
            tokens_BS = torch.from_numpy(batch.token_ids_BS)
            logits_BV = model.token_logits(model(tokens_BS[:, :-1], ids_BS[:, :-1])[0][:, -1])
        log_q_BV, log_p_BV = logits_BV.double().log_softmax(-1).numpy(), batch.log_posterior_BV
        excess = [
            sum(np.exp(p) * (p - q) for p, q in zip(*pair, strict=True) if np.isfinite(p))
            for pair in zip(log_p_BV, log_q_BV, strict=True)
        ]
        assert row["excess_loss"] == pytest.approx(np.mean(excess), abs=1e-5)
        of_size = examples[examples["size"] == row["size"]]
        assert of_size["excess_loss"].tolist() == pytest.approx(excess, abs=1e-5)
        for tokens_S, distances in zip(batch.token_ids_BS, of_size["distances"], strict=True):
            cues = np.flatnonzero((tokens_S[: row["size"]] >= 16) & (tokens_S[: row["size"]] < 128))
            assert list(distances) == (row["size"] - 1 - cues).tolist()
        assert row["excess_loss_error"] == pytest.approx(np.std(excess) / 20**0.5, abs=1e-5)
        assert row["attention_scaling"] == "learnt"
        assert row["best_loss"] == pytest.approx(np.log(2)) and len(row["sign_attention"]) == 1
        # So little trained, attention is all but even: two signs among all tokens.
        assert row["sign_attention"][0] == pytest.approx(2 / row["size"], rel=0.3)


def test_a_run_ends_once_its_task_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, enough = tmp_path / "run", "stop_at_excess_loss=100"
    caplog.set_level("INFO", logger="pipeline")
    train(run, *OF_SIGNS, enough, task="signs_1", positions="contiguous")
    assert re.fullmatch(r"learnt: excess loss in distribution \d\.\d+ nats, .* 100.0", caplog.messages[-1])
    assert sorted(path.name for path in run.glob("step*")) == ["step2-unsharded", "step3-unsharded"]
    train(run, *OF_SIGNS, enough, task="signs_1", positions="contiguous")
    assert f"already finished: {run / 'step3-unsharded'}" in caplog.text
    assert find_task_run(run, "signs_1").is_learnt
    train(tmp_path / "other", *OF_SIGNS, "stop_at_excess_loss=1e-6", task="signs_1", positions="contiguous")
    assert (tmp_path / "other" / "step6-unsharded").is_dir()
    assert not find_task_run(tmp_path / "other", "signs_1").is_learnt
    assert caplog.messages[-1].startswith("NOT learnt: excess loss in distribution")
