"""Studies: what is checked before they run, the jobs that are planned, what a failure leaves, signals."""

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import psutil
import pytest
from sparsity_length.programs.study import STAGE

from sparsity_length.cli import InputError, stage_of
from sparsity_length.measuring.rules import TRIAL_SWAPS
from sparsity_length.studies.cluster import (
    forward_tokens,
    minutes_of,
    num_checkpoints,
    num_weights,
    training_operations,
)
from sparsity_length.studies.commands import Command, commands_of
from sparsity_length.studies.file import load_study
from sparsity_length.studies.run import run_all, submit_chain

StudyFile = Callable[..., Path]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["evaluation.short_context_length=64"], "loss_differences-tiny: the short context .* no distant"),
        (["evaluation.k=[53]"], "k 53 is more than the 52 distant tokens of the first"),
        (["evaluation.rules=[leave_one_aut]"], "did you mean 'leave_one_out'"),
        (["models.long-seed1.train_context_length=512"], "at most model.max_sequence_length, 256"),
        (["sizes.tiny.config=none.yaml"], "tiny-short-seed0: no configuration file none.yaml"),
        # The fixture trains four steps; without its own override the warm-up is that of tiny.yaml, 100.
        (["sizes.tiny.overrides=[save_interval=2]"], "tiny-short-seed0: scheduler.t_warmup is 100 steps"),
        (["further_evaluations.along_training.steps=[3]"], "step 3 is to be measured, but .* every 2 "),
        (["data.tokenizer=none.json"], "there is no tokenizer none.json"),
        (["data.source=[nowhere.jsonl]"], "tokenize_c4: cannot read nowhere.jsonl: No such file"),
        # All that is lacking at once, that of later commands, too, and how to do without it.
        (
            [
                "data.source=[nowhere.jsonl]",
                "further_evaluations.along_training.data.source=[none.jsonl]",
                "further_evaluations.along_training.data.tokenizer=run/data/tokenizer.json",
            ],
            "nowhere.jsonl: No .*; tokenize_c4-along_training: cannot read none.jsonl: .* "
            r"\(further_evaluations.along_training=null leaves it out\)",
        ),
        (
            ["evaluation.max_documnets=3"],
            "field of an evaluation 'max_documnets'; did you mean 'max_documents'",
        ),
        (["evaluation.run_notebooks={long_modles: [x]}"], "unrecognized arguments: --long-modles"),
        (["evaluation.models=[long]"], "did you mean 'long-seed1'"),
        (
            ["further_evaluations.chosen={stages: [evaluate_tokens]}"],
            "that evaluate_tokens-tiny-chosen needs: 'influential_tokens-tiny-chosen'; did you mean",
        ),
    ],
)
def test_what_could_not_run_to_its_end_is_refused_before_it_begins(
    study_file: StudyFile, overrides: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = study_file()
    monkeypatch.chdir(path.parent)
    with pytest.raises(InputError, match=sentence):
        STAGE([str(path), *overrides])
    assert {found.name for found in path.parent.iterdir()} == {path.name, "train.jsonl", "evaluation.jsonl"}


def test_needles_are_planted_in_the_text_and_measured_in_its_place() -> None:
    commands = {one.name: one for one in commands_of(load_study(Path("olmo_configs/studies/reach.yaml")))}
    for name in ("", "-yarn"):
        assert commands[f"plant_needles{name}"].needs == ("tokenize_c4",)
        assert commands[f"length_interference{name}"].needs == (f"plant_needles{name}",)


def test_our_configurations_are_found_in_any_folder_and_those_of_the_folder_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = commands_of(load_study(Path("olmo_configs/studies/demo.yaml")))
    (command,) = (one for one in commands if one.name == "long-seed0")
    stage = stage_of("pretrain")
    assert stage.settings(stage.parse(command.arguments), []).train_context_length == 128
    (tmp_path / "olmo_configs").mkdir()
    (tmp_path / "olmo_configs" / "demo.yaml").write_text("max_duration: 3\nno_such_field: 1\n")
    with pytest.raises(InputError, match="no_such_field"):
        stage.settings(stage.parse(command.arguments), [])


def test_each_job_waits_for_those_it_needs_and_is_given_its_tasks(
    study_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def planned(*overrides: str) -> dict[str, list[str]]:
        """Job name -> what stands after sbatch, where a job's name stands for its ID."""
        study = load_study(study_file(), overrides)
        submit_chain(commands_of(study), study, is_plan=True)
        lines = [shlex.split(line)[1:] for line in capsys.readouterr().out.splitlines()]
        return {words[2].removeprefix("--job-name="): words for words in lines}

    jobs = planned("slurm={tokenize: 3, measure: 2}")
    waits = {name: re.findall("--dependency=afterok:(.*?) ", " ".join(jobs[name])) for name in jobs}
    models = "tiny-short-seed0:tiny-long-seed1"
    assert {name: "".join(wait) for name, wait in waits.items()} == {
        "tokenize_c4-tasks": "",
        "tokenize_c4": "tokenize_c4-tasks",
        "tiny-short-seed0": "tokenize_c4",
        "tiny-long-seed1": "tokenize_c4",
        "loss_differences-tiny": f"tokenize_c4:{models}",
        "length_losses-tiny": f"tokenize_c4:{models}",
        "influential_tokens-tiny": "tokenize_c4:tiny-long-seed1",
        "run_notebooks-tiny": "loss_differences-tiny:length_losses-tiny:influential_tokens-tiny",
        "loss_differences-tiny-along_training": "tokenize_c4:tiny-long-seed1",
        "summary-tiny": f"tokenize_c4:{models}:loss_differences-tiny:length_losses-tiny"
        ":influential_tokens-tiny:run_notebooks-tiny:loss_differences-tiny-along_training",
    }
    assert jobs["tokenize_c4-tasks"] == [
        "--parsable",
        "--kill-on-invalid-dep=yes",
        "--job-name=tokenize_c4-tasks",
        "--output=run/logs/tokenize_c4-tasks-%A_%a.log",
        "--array=0-2",
        "slurm/tokenize_c4.sh",
        "--num-tasks",
        "3",
        "--out",
        "run/data",
        "--source",
        "train.jsonl",
        "--evaluation-source",
        "evaluation.jsonl",
        "--tokenizer",
        "bpe:300",
    ]
    assert jobs["tokenize_c4"][-3:] == ["slurm/merge_c4.sh", "--out", "run/data"]
    assert "--output=run/logs/tiny-long-seed1-%j.log" in jobs["tiny-long-seed1"]
    assert jobs["length_losses-tiny"][4] == "--array=0-1"
    assert jobs["length_losses-tiny"][6:10] == ["slurm/loss_differences.sh", "--num-tasks", "2", "--data"]
    assert jobs["summary-tiny"][-6:-3] == ["slurm/analysis.sh", "analysis/summary.py", "--results"]
    in_one_piece = planned()  # which needs no merge
    assert "tokenize_c4-tasks" not in in_one_piece
    assert in_one_piece["tokenize_c4"][4:8] == ["--array=0-0", "slurm/tokenize_c4.sh", "--num-tasks", "1"]


def test_what_is_null_is_left_out(study_file: StudyFile, tmp_path: Path) -> None:
    def names(*overrides: str) -> set[str]:
        return {command.name for command in commands_of(load_study(study_file(), overrides))}

    without = names("sizes.large={config: tiny.yaml}", "sizes.tiny=null", "models.short-seed0=null")
    assert "large-long-seed1" in without and not {"large-short-seed0", "tiny-long-seed1"} & without
    trained = names("sizes.large={config: tiny.yaml, models: []}")
    assert "tiny-long-seed1" in trained and not any("large-" in name for name in trained)


def test_jobs_without_a_gpu_go_where_cluster_env_says(
    study_file: StudyFile, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load_study(study_file(), ["slurm.tokenize=2"])
    (study_file().parent / "slurm").mkdir()
    (study_file().parent / "slurm" / "cluster.env").write_text("export CPU_PARTITION=cpu\n")
    monkeypatch.chdir(study_file().parent)
    submit_chain(commands_of(study), study, is_plan=True)
    for line in capsys.readouterr().out.splitlines():
        (script,) = re.findall(r" (slurm/\w+\.sh)", line)
        needs_gpu = "#SBATCH --gpus-per-node" in (ROOT / script).read_text()
        assert ("--partition=cpu" in line) != needs_gpu, line


def test_hours_and_disk_are_counted(study_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = study_file()
    monkeypatch.chdir(path.parent)
    study = load_study(path, ["sizes.tiny.overrides=[save_interval=3,scheduler.t_warmup=2]"])
    commands = {command.name: command for command in commands_of(study)}

    def asked_by(name: str, *needed: Any) -> Any:
        stage = stage_of(commands[name].stage)
        return stage.settings(stage.parse(commands[name].arguments), needed)

    config = asked_by("tiny-short-seed0")
    # tiny.yaml: 2 layers of width 128 with a SwiGLU of 512; 300 tokens take 384 rows, tied.
    weights = num_weights(config, "bpe:300")
    assert weights == 384 * 128 + 2 * (4 * 128**2 + 128 * 512 + 256 * 128)
    # Four steps; each token attends to 8 of 16 tokens on average, twice, in 2 layers of width 128.
    tokens = 4 * config.global_train_batch_tokens
    assert training_operations(config, weights) == 6 * tokens * (weights + 2 * 8 * 2 * 128)
    assert num_checkpoints(config) == 2  # steps 3 and 4

    def tokens_of(name: str) -> float:
        return forward_tokens(asked_by(name), 5)

    # Five documents of 64 tokens, 4 targets with 8 near tokens and at most 55 distant ones.
    assert tokens_of("loss_differences-tiny") == 5 * (64 + 4 * 8)
    search = 64 + 55 * (64 - 55 / 2)
    trial = 2 * 4 * ((8 + 1) + (8 + 4))
    assert tokens_of("influential_tokens-tiny") == 5 * 2 * (search + trial * TRIAL_SWAPS)


@pytest.mark.parametrize(
    ("time", "minutes"),
    [("30", 30), ("30:30", 30.5), ("12:00:00", 720), ("1-12", 2160), ("1-12:30", 2190), ("infinite", inf)],
)
def test_times_as_slurm_writes_them(time: str, minutes: float) -> None:
    assert minutes_of(time) == minutes


ROOT = Path(__file__).resolve().parents[2]
LOGS = Path("run/logs")
# Writes down that it ran, fails while a file FAIL stands beside it, and writes its result.
FAILING_STAGE = """
import pathlib, sys
name = sys.argv[1]
with open("ran", "a") as log:
    log.write(name + "\\n")
if pathlib.Path("FAIL-" + name).exists():
    print("no good", file=sys.stderr)
    sys.exit(75)
pathlib.Path(name).touch()
print(name, "is there")
"""
# Never ends by itself; what it does when it is told to is the argument's.
SLOW = """
import pathlib, signal, subprocess, sys, time
name, reaction = sys.argv[1:3]
if reaction == "saves":
    def save(*_):
        pathlib.Path(name + "-saved").touch()
        sys.exit(75)
    signal.signal(signal.SIGTERM, save)
elif reaction == "starts":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "grandchild"])
pathlib.Path(name + "-started").touch()
time.sleep(60)
"""
START = """
import signal, sys
from sparsity_length.cli import Stage
from stub import main
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
sys.argv = ["study.py"]
Stage("a study", lambda parser: None, main).main()
"""
STUDY = """
import sys
from pathlib import Path
from sparsity_length.studies.commands import Command
from sparsity_length.studies.run import run_all
class Script(Command):
    def words(self):
        return [self.program, *self.arguments]
def main(_):
    reactions = REACTIONS
    here = Path.cwd()
    commands = [Script(name, str(here / f"{name}.py"), (name, how)) for name, how in reactions.items()]
    sys.exit(run_all(commands, [{}] * len(commands), Path("run/logs")))
"""


class Script(Command):
    """A command that is no program of ours."""

    def words(self) -> list[str]:
        return [self.program, *self.arguments]


def command(name: str, *needs: str) -> Command:
    return Script(name, str(Path("stage.py").absolute()), (name,), needs)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Three stages, each of which needs the one before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of the tests' own process stay
    Path("stage.py").write_text(FAILING_STAGE)
    return [command("first"), command("second", "first"), command("third", "second")]


def ran() -> list[str]:
    """Which stages ran since the last question."""
    names = Path("ran").read_text().split()
    Path("ran").unlink()
    return names


def test_after_a_failure_only_what_is_left_runs(
    commands: list[Command], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Path("FAIL-second").touch()
    assert run_all(commands, [{}], LOGS) == 75
    assert ran() == ["first", "second"]
    assert capfd.readouterr().out == "sparsity stage first\nfirst is there\nsparsity stage second\n"
    assert caplog.messages[-2] == "second ended with exit code 75; run the same command again to resume"
    assert "the last lines of run/logs/second.log:\n" in caplog.messages[-1]
    assert caplog.messages[-1].endswith("\nno good")
    Path("FAIL-second").unlink()
    assert run_all(commands[1:], [{}], LOGS) == 0
    assert ran() == ["second", "third"]
    assert Path("run/logs/second.log").read_text().count("--- ") == 2  # one heading per run


@pytest.fixture
def started_study(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], "subprocess.Popen[str]"]]:
    """A function starting a study of slow commands, name -> reaction, which returns once all of them run."""
    studies = []

    def start(reactions: dict[str, str]) -> "subprocess.Popen[str]":
        for name in reactions:
            (tmp_path / f"{name}.py").write_text(SLOW)
        (tmp_path / "stub.py").write_text(STUDY.replace("REACTIONS", repr(reactions)))
        study = subprocess.Popen(
            [sys.executable, "-c", START],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        studies.append(study)
        wait_until(lambda: all((tmp_path / f"{name}-started").exists() for name in reactions))
        return study

    yield start
    for study in studies:
        study.kill()
        study.communicate()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


STOPPED = "study: stopped by a signal, trainings once they have saved; run the same command again to resume\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_request_to_stop_reaches_all_that_runs(
    number: int, tmp_path: Path, started_study: Callable[..., subprocess.Popen[str]]
) -> None:
    study = started_study({"pretrain": "saves", "measuring": "ends", "notebooks": "starts"})
    study.send_signal(number)
    _, said = study.communicate(timeout=60)
    assert (study.returncode, STOPPED in said) == (75, True), said
    assert (tmp_path / "pretrain-saved").exists()
    here = str(tmp_path.resolve())
    wait_until(lambda: all(one.info["cwd"] != here for one in psutil.process_iter(["cwd"])), seconds=5)
