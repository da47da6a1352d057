"""What the measuring stages share: documents shared among tasks, folders resumed or refused, refusals."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from forked_stages import ROOT
from measured_documents import (
    DOCUMENTS,
    Typed,
    command_line,
    contents,
    measure,
    stage_name,
    word_level,
    write_checkpoint,
)
from olmo.model import OLMo
from sparsity_length.programs import (
    evaluate_tokens,
    influential_tokens,
    length_interference,
    loss_differences,
)

from sparsity_length.cli import InputError
from sparsity_length.measuring import stage as evaluate_checkpoints
from sparsity_length.models.devices import device_of_this_process
from sparsity_length.results.files import Task
from sparsity_length.results.read import Results
from sparsity_length.training.loop import train


@pytest.mark.parametrize(
    ("stage", "names"), [(loss_differences, ["aa", "bb"]), (length_interference, ["aa"])]
)
def test_the_first_documents_that_are_long_enough_are_measured(
    stage: ModuleType, names: list[str], folder: Path
) -> None:
    """One is enough where no other stands in for it."""
    rows = Results(measure(stage, folder, "--max-documents", str(len(names)))).frame(stage_name(stage))
    assert rows["document_id"].unique().tolist() == [f"00000000000000{name}" for name in names]


@pytest.mark.slow
def test_a_killed_run_of_three_documents_keeps_the_first(folder: Path) -> None:
    whole = contents(measure(influential_tokens, folder, "--results", str(folder / "whole")))
    flags = command_line(influential_tokens, folder, "--results", str(folder / "killed"))
    script = (
        "import os, signal, sys\n"
        "from sparsity_length.programs import influential_tokens as stage\n"
        "from sparsity_length.results.write import StageOutput\n"
        "write = StageOutput.write_shard\n"
        "def write_and_be_killed(*of):\n    write(*of)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "StageOutput.write_shard = write_and_be_killed\n"
        "stage.STAGE(sys.argv[1:])\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, *flags], cwd=ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (mark,) = (folder / "killed").rglob("*.done")
    written = mark.stat().st_mtime_ns
    results = measure(influential_tokens, folder, "--results", str(folder / "killed"))
    assert mark.stat().st_mtime_ns == written
    assert contents(results) == whole


ONE_DOCUMENT = ["--documents-per-shard", "1"]


def test_complete_results_are_not_computed_again(
    measurable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(loss_differences, measurable, "--results", tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.setattr(evaluate_checkpoints, "GivenModel", None)  # no model is loaded
    measure(loss_differences, measurable, "--results", tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


@pytest.mark.parametrize(
    ("stage", "tasks"),
    [
        # Of three documents: task 3 has nothing to do.
        (loss_differences, "3-of-4 1-of-4 0-of-4 2-of-4"),
        (influential_tokens, "3-of-4 1-of-4 0-of-4 2-of-4"),
        (loss_differences, "1-of-2 1-of-3 0-of-1"),
    ],
)
def test_tasks_in_any_order_and_number_write_the_bytes_of_one(
    stage: ModuleType, tasks: str, measurable: Path, tmp_path: Path
) -> None:
    whole = contents(measure(stage, measurable, *ONE_DOCUMENT, "--results", tmp_path / "whole"))
    for task in tasks.split():
        index, _, number = task.partition("-of-")
        words = ["--results", tmp_path / "split", "--task-index", index, "--num-tasks", number]
        measure(stage, measurable, *ONE_DOCUMENT, *words)
    assert contents(tmp_path / "split") == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ["torchrun", "--standalone", "--nproc-per-node=2"],
        # Said to be GPUs: on CPUs accelerate starts several processes through MPI only.
        [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"],
    ],
    ids=["torchrun", "accelerate"],
)
def test_processes_under_a_launcher_write_the_bytes_of_one(
    launcher: list[str], measurable: Path, tmp_path: Path
) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    whole = contents(measure(loss_differences, measurable, *ONE_DOCUMENT, "--results", tmp_path / "whole"))
    flags = command_line(loss_differences, measurable, *ONE_DOCUMENT, "--results", tmp_path / "split")
    launched = subprocess.run(
        [*launcher, str(ROOT / "pipeline" / "loss_differences.py"), *flags],
        timeout=240,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PATH": path},
        capture_output=True,
        text=True,
    )
    assert launched.returncode == 0, launched.stderr
    assert contents(tmp_path / "split") == whole


def test_each_process_has_its_own_gpu_and_share(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_of_this_process("cuda") == "cuda"
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert [device_of_this_process(name) for name in ("cuda", "cuda:3", "cpu")] == ["cuda:1", "cuda:3", "cpu"]
    # Of two tasks with two processes each, the second processes have the last two of four shares.
    assert [evaluate_checkpoints._share_of(Task(index, 2)) for index in range(2)] == [Task(2, 4), Task(3, 4)]


@pytest.mark.parametrize(
    ("variables", "shards", "said"),
    [
        ("RANK=0 WORLD_SIZE=2", [0, 2], "share 1 of 2 alone is measured here, as RANK and WORLD_SIZE"),
        ("RANK=1 LOCAL_RANK=1 WORLD_SIZE=2", [1], "share 2 of 2 alone is measured here"),
        ("WORLD_SIZE=1", [0, 1, 2], ""),
        ("RANK=0", [0, 1, 2], ""),
    ],
)
def test_a_share_is_measured_and_named_by_what_says_so(
    variables: str,
    shards: list[int],
    said: str,
    measurable: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    measure(loss_differences, measurable, *ONE_DOCUMENT, "--results", tmp_path)
    written = sorted(path.name for path in tmp_path.rglob("*.parquet"))
    assert written == [f"{shard:05d}-of-00003.parquet" for shard in shards]
    assert said in caplog.text and ("alone" in caplog.text) == bool(said)


@pytest.mark.parametrize(
    "variables",
    [
        "RANK=1",
        "WORLD_SIZE=4",
        "RANK=4 WORLD_SIZE=4",
        "RANK=-1 WORLD_SIZE=2",
        "RANK=x",
        "RANK=",
        "LOCAL_RANK=1",
    ],
)
def test_variables_that_do_not_fit_are_refused(
    variables: str, measurable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    with pytest.raises(InputError, match=f"{variables} in the environment numbers no process"):
        measure(loss_differences, measurable, *ONE_DOCUMENT, "--results", tmp_path)
    with pytest.raises(InputError, match="numbers no process of a launcher|speaks of processes that train"):
        train(tmp_path, lambda: pytest.fail("it began"))


def test_status_counts_what_is_there(measurable: Path, tmp_path: Path, typed: Typed) -> None:
    stage = loss_differences.STAGE
    words = command_line(loss_differences, measurable, *ONE_DOCUMENT, "--results", str(tmp_path))
    stage([*words, "--task-index", "1", "--num-tasks", "2"])
    code, said, _ = typed(stage.main, "stage.py", *words, "--status")
    assert code == 1 and "has 1 of 3 shards" in said
    assert len(stage.left(stage.parse(words))) == 1  # of one model
    stage(words)
    assert stage.left(stage.parse(words)) == []
    code, said, _ = typed(stage.main, "stage.py", *words, "--status")
    assert code == 0 and "has 3 of 3 shards" in said
    with pytest.raises(InputError, match="made with other settings"):
        stage.left(stage.parse([*words, "--target-stride", "2"]))


def test_a_model_beside_it_of_another_tokenizer(folder: Path, make_olmo: Callable[..., OLMo]) -> None:
    step = write_checkpoint(folder / "other-run", make_olmo(seed=1)) / "step20-unsharded"
    word_level(*(f"w{(index + 1) % 48}" for index in range(48)), unk_token="w1").save(
        str(step / "tokenizer.json")
    )
    sentence = f"is another tokenizer than that of other-run, the tokenizer {step}/tokenizer.json"
    with pytest.raises(InputError, match=sentence):
        measure(loss_differences, folder, "--checkpoints", str(folder / "other-run"))
    assert contents(folder / "results") == {}


def test_another_model_of_one_name_in_one_results_folder(
    folder: Path, make_olmo: Callable[..., OLMo]
) -> None:
    words = ["--max-documents", "2", "--rules", "recency"]
    tried = ["--choices", str(measure(influential_tokens, folder, *words)), "--checkpoints"]
    for seed, name in enumerate(("a/evaluator", "b/evaluator", "run")):
        write_checkpoint(folder / name, make_olmo(seed=seed))
    measure(evaluate_tokens, folder, *tried, f"{folder}/a/evaluator")
    for program, again, of_input in (
        (evaluate_tokens, [*tried, f"{folder}/b/evaluator"], "evaluator"),
        (influential_tokens, words, "checkpoint"),
    ):
        with pytest.raises(InputError, match=rf"inputs\.{of_input} was '\w+', now '\w+'"):
            measure(program, folder, *again)


@pytest.mark.parametrize("stage", [loss_differences, length_interference])
def test_what_is_no_number_is_told_with_the_model_that_gave_it(
    stage: ModuleType, folder: Path, make_olmo: Callable[..., OLMo]
) -> None:
    model = make_olmo(seed=2, weight_tying=False)
    tokens = next(iter(DOCUMENTS.values()))
    # A token that stands in the second chunk once, before its targets 21, 22 and 23, and nowhere else.
    position = next(place for place in range(20, 12, -1) if np.sum(tokens[:24] == tokens[place]) == 1)
    model.transformer.wte.weight.data[int(tokens[position])] = float("nan")
    write_checkpoint(folder / "broken", model)
    sentence = "model 'broken' gives the token at position 21 of document 00000000000000aa a loss of nan"
    with pytest.raises(InputError, match=f"^{sentence}"):
        measure(stage, folder, "--max-documents", "2", "--checkpoints", str(folder / "broken"))
    assert contents(folder / "results") == {}
