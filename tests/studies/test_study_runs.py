"""Running a study: in which order, what a failure leaves, which signals arrive, what is refused before."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.results.files import FolderLock
from pipeline.studies.commands import Command, Training
from pipeline.studies.file import load_study
from pipeline.studies.run import Finished, Slots, run_all, run_here
from pipeline.study import main, parser

ROOT = Path(__file__).resolve().parents[2]
LOGS = Path("run/logs")
# Writes down that it ran, fails while a file FAIL stands beside it, and writes its result.
STAGE = """
import pathlib, sys, time
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
elif reaction == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
elif reaction == "starts":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "grandchild"])
pathlib.Path(name + "-started").touch()
time.sleep(60)
"""
START = """
import sys
from pipeline.cli import prepare, run_module
sys.argv = ["study.py"]
prepare("study.py")
run_module("stub", "study.py")
"""
STUDY = """
import sys
from pathlib import Path
from pipeline.cli import stage_parser
from pipeline.studies.commands import Command, Training
from pipeline.studies.run import Finished
from pipeline.studies.run import run_all
from pipeline.studies.run import Slots
def parser():
    return stage_parser("a study")
def main(_):
    reactions = REACTIONS
    training = Training("training", Path("c"), (), Path("f"))
    commands = [
        Command(name, "slow.py", (name, reaction), (), (), (), training if reaction == "saves" else None)
        for name, reaction in reactions.items()
    ]
    sys.exit(run_all(commands, Finished(Path("run")), Slots(len(commands)), Path("run/logs")))
"""


def command(name: str, *needs: str, writes: bool = True, reads: tuple[str, ...] = ()) -> Command:
    return Command(name, "stage.py", (name,), needs, reads, (Path(name),) if writes else ())


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Three stages, and one that leaves nothing to be found."""
    monkeypatch.chdir(tmp_path)
    Path("stage.py").write_text(STAGE)
    return [
        command("first"),
        command("second", "first"),
        command("third", "second"),
        command("closing", "third", writes=False),
    ]


def run(commands: list[Command], jobs: int = 1) -> int:
    return run_all(commands, Finished(Path("run")), Slots(jobs), LOGS)


def ran() -> list[str]:
    """Which stages ran since the last question."""
    log = Path("ran")
    names = log.read_text().split()
    log.unlink()
    return names


def test_after_a_failure_only_what_is_left_runs(
    commands: list[Command], capfd: pytest.CaptureFixture[str]
) -> None:
    Path("FAIL-second").touch()
    assert run(commands) == 75
    assert ran() == ["first", "second"]
    printed = capfd.readouterr()
    assert printed.out == "python stage.py first\nfirst is there\npython stage.py second\n"
    assert printed.err.splitlines()[-3:] == [
        "study: the last lines of run/logs/second.log:",
        "study:   no good",
        "study: second ended with exit code 75; run the same again to go on",
    ]
    Path("FAIL-second").unlink()
    assert run(commands) == 0
    assert ran() == ["second", "third", "closing"]
    assert run(commands) == 0
    assert ran() == ["closing"]  # which leaves nothing that could say so
    assert "study: finished before: first, second, third\n" in capfd.readouterr().err
    assert Path("run/logs/second.log").read_text().count("--- ") == 2  # a heading a run
    assert Path("run/logs/second.log").read_text().endswith("second is there\n")


def test_each_command_waits_for_those_it_needs_and_no_others(commands: list[Command]) -> None:
    # `first` ends only once `beside` is there, which nothing but a second place can give.
    Path("stage.py").write_text(
        STAGE + "\nwhile name == 'first' and not pathlib.Path('beside').exists(): time.sleep(0.02)\n"
    )
    assert run([*commands, command("beside")], jobs=2) == 0
    names = ran()
    assert names.index("beside") < names.index("second") < names.index("third") < names.index("closing")


def test_the_first_failure_stops_the_rest(commands: list[Command], capfd: pytest.CaptureFixture[str]) -> None:
    Path("slow.py").write_text(SLOW)
    Path("FAIL-first").touch()
    Path("stage.py").write_text(
        "import pathlib, time\nwhile not pathlib.Path('training-started').exists(): time.sleep(0.02)\n"
        + STAGE
    )
    training = Training("training", Path("c"), (), Path("f"))
    slow = Command("training", "slow.py", ("training", "saves"), (), (), (), training)
    started = time.monotonic()
    assert run([slow, *commands], jobs=2) == 75
    assert time.monotonic() - started < 30
    assert Path("training-saved").exists()
    assert "first ended with exit code 75" in capfd.readouterr().err


def test_a_command_that_the_kernel_kills_is_named_with_its_memory(
    commands: list[Command], capfd: pytest.CaptureFixture[str]
) -> None:
    Path("stage.py").write_text(
        "import os, signal\nheld = b'x' * 100_000_000\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert run(commands) == 128 + signal.SIGKILL
    said = capfd.readouterr().err
    sentence = (
        r"first was killed, as the kernel does where memory runs out: it had (\S+) GiB, and \S+ GiB are free"
    )
    held = re.search(sentence, said)
    assert held is not None and float(held[1]) > 0.09, said


@pytest.fixture
def started_study(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], "subprocess.Popen[str]"]]:
    """A function starting a study of slow commands, name -> reaction, which returns once all of them run."""
    studies = []

    def start(reactions: dict[str, str]) -> "subprocess.Popen[str]":
        (tmp_path / "slow.py").write_text(SLOW)
        (tmp_path / "stub.py").write_text(STUDY.replace("REACTIONS", repr(reactions)))
        study = subprocess.Popen(
            [sys.executable, "-c", START],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
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


def living(folder: Path) -> list[str]:
    """The command lines of all processes that work in a folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and (process / "cwd").readlink() == folder.resolve():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_two_studies_in_one_folder_are_refused(
    study_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = study_file()
    monkeypatch.chdir(path.parent)
    study = load_study(path)
    with (
        FolderLock(Path(study.run), "run"),
        pytest.raises(InputError, match="run is in use by process .* run=FOL"),
    ):
        run_here(study, path, [], None, None)
    assert run_here(study, path, [], None, None) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_request_to_stop_reaches_every_command(
    number: signal.Signals, tmp_path: Path, started_study: Callable[..., "subprocess.Popen[str]"]
) -> None:
    study = started_study({"training": "saves", "measuring": "ends"})
    study.send_signal(number)
    _, said = study.communicate(timeout=60)
    assert (study.returncode, said) == (75, "study: stopped by a signal; run the same again to go on\n")
    assert (tmp_path / "training-saved").exists()
    assert living(tmp_path) == []


def test_an_interrupt_ends_all_within_two_seconds(
    tmp_path: Path, started_study: Callable[..., "subprocess.Popen[str]"]
) -> None:
    study = started_study(
        {"training": "saves", "measuring": "ends", "stubborn": "ignores", "notebooks": "starts"}
    )
    started = time.monotonic()
    study.send_signal(signal.SIGINT)
    _, said = study.communicate(timeout=60)
    assert time.monotonic() - started < 2 + 3  # for a busy machine; see _PATIENCE_SECONDS
    assert (study.returncode, said) == (130, "study.py: interrupted; run the same command again to go on\n")
    assert (tmp_path / "training-saved").exists()
    wait_until(lambda: living(tmp_path) == [], seconds=5)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux tells children of a parent's death")
def test_a_killed_study_takes_its_children_with_it(
    tmp_path: Path, started_study: Callable[..., "subprocess.Popen[str]"]
) -> None:
    study = started_study({"training": "saves", "measuring": "ends"})
    assert len(living(tmp_path)) == 3
    study.kill()
    wait_until(lambda: living(tmp_path) == [], seconds=10)
    assert (tmp_path / "training-saved").exists()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["evaluation.short_context_length=64"], "leaves no far context: it must be shorter than the long"),
        (["evaluation.k=[53]"], "k 53 is more than the 52 far-context tokens of the first"),
        (["evaluation.rules=[leave_one_aut]"], "did you mean 'leave_one_out'"),
        (["evaluation.intervention=backgruond"], "did you mean 'background'"),
        (
            ["evaluation.intervention=background", "evaluation.rules=[greedy]"],
            "has no meaning for rule greedy",
        ),
        (["evaluation.num_subsets=5"], "--num-subsets 5: subsets come in pairs; choose an even number"),
        (["models.short-seed0.pose_target_length=8"], "must be at least train_context_length, 16"),
        (["models.long-seed1.train_context_length=512"], "at most model.max_sequence_length, 256"),
        (["sizes.tiny.config=none.yaml"], "tiny-short-seed0: no configuration file none.yaml"),
        (["further_evaluations.along_training.steps=[3]"], "step 3 is to be measured, but .* every 2 steps"),
        (
            [
                "sizes.tiny.overrides=[save_interval=2,scheduler.t_warmup=2,save_num_unsharded_checkpoints_to_keep=1]"
            ],
            "step 2 is to be measured, but tiny-long-seed1 keeps its last 1 checkpoints only",
        ),
        (["data.tokenizer=bpe:7"], "the size of a BPE is a whole number of at least"),
        # The fixture trains four steps; without its own override the warm-up is that of tiny.yaml, 100.
        (
            ["sizes.tiny.overrides=[save_interval=2]"],
            r"tiny-short-seed0: scheduler.t_warmup is 100 steps, lon",
        ),
        (["further_evaluations.along_training.steps=[8]"], "step 8 is .*trained for 4 steps only"),
        (["data.source=[nowhere.jsonl]"], "tokenize_c4: cannot read nowhere.jsonl: No such file"),
        (["data.source=['c4/*.json.gz']"], r"no file matches --source 'c4/\*.json.gz'"),
        (["data.source=[c4]"], "streams 156 billion tokens"),
        (["data.tokenizer=none.json"], "there is no tokenizer file none.json"),
        (["data.tokenizer=train.jsonl"], "train.jsonl is not a tokenizer.json"),
        (
            ["evaluation.data={source: [train.jsonl], tokenizer: 'bpe:300'}"],
            "tokenizer bpe:300 would be another one than the models were trained with; use run/data/tok",
        ),
        (["evaluation.dtype=float23"], "unknown dtype 'float23'; did you mean 'float32'"),
        (["sizes.tiny.overrides=['trackers=[wandbe]']"], "did you mean 'wandb'"),
        (["run=train.jsonl"], "cannot write into train.jsonl; choose another folder"),
        (["run=train.jsonl/run"], "cannot write into .*train.jsonl"),
    ],
)
def test_what_could_not_run_to_its_end_is_refused_before_it_begins(
    study_file: Callable[..., Path], overrides: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = study_file()
    monkeypatch.chdir(path.parent)
    with pytest.raises(InputError, match=sentence):
        main(parser().parse_args([str(path), *overrides]))
    assert {found.name for found in path.parent.iterdir()} == {path.name, "train.jsonl", "evaluation.jsonl"}


@pytest.mark.parametrize("flags", [["--utilization", "0"], ["--peak-flops", "-1"], ["--peak-flops", "nan"]])
def test_a_plan_of_no_speed_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args(["study.yaml", "--dry-run", *flags])
    assert stopped.value.code == 2
    assert "above 0" in capsys.readouterr().err


def test_the_plan_is_a_script_with_estimates(
    study_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = study_file()
    monkeypatch.chdir(path.parent)
    main(parser().parse_args([str(path), "--dry-run", "--peak-flops", "1e9"]))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:4:2]] == ["# tokenize_c4", "# tiny-short-seed0"]
    assert lines[2].startswith("# tiny-short-seed0: 0.4 M parameters, 0.1 GB, trains on 0.0 M tokens, ")
    assert all(line.startswith(f"python {ROOT}/") for line in lines[1::2])
    assert lines[-1].startswith("# in all, of what has not finished: trains on 0.0 M tokens, 0.05 M token")
    assert not (path.parent / "run").exists()


def test_a_training_configuration_is_planned_and_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "olmo_configs" / "tiny.yaml")
    main(parser().parse_args([path, "--dry-run", "--peak-flops", "1e9", "max_duration=10"]))
    assert "in 10 steps take" in capsys.readouterr().out
    with pytest.raises(InputError, match="is the configuration of one training"):
        main(parser().parse_args([path]))


def test_a_study_is_planned_where_its_text_is_not_and_the_plan_says_so(
    study_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = study_file()
    monkeypatch.chdir(path.parent)
    (path.parent / "train.jsonl").unlink()
    with pytest.raises(InputError, match="tokenize_c4: cannot read train.jsonl"):
        main(parser().parse_args([str(path), "--dry-run", "--peak-flops", "1e9"]))
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .endswith("at 1 GFLOP/s, as given, of which 40% are assumed to be used")
    )
