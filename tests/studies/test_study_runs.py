"""Running a study: what is skipped, what a failure leaves, which signals arrive, what is refused before."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.studies.commands import Command
from pipeline.studies.running import Finished, run_all
from pipeline.study import main, parser

ROOT = Path(__file__).resolve().parents[2]
# Writes down that it ran, fails while a file FAIL stands beside it, and writes its result.
STAGE = """
import pathlib, sys
name = sys.argv[1]
with open("ran", "a") as log:
    log.write(name + "\\n")
if pathlib.Path("FAIL-" + name).exists():
    sys.exit(75)
pathlib.Path(name).touch()
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Three stages, and one that leaves nothing to be found."""
    monkeypatch.chdir(tmp_path)
    Path("stage.py").write_text(STAGE)
    names = {"first": ["first"], "second": ["second"], "third": ["third"], "closing": []}
    return [
        Command(name, "stage.py", (name,), (), tuple(map(Path, writes))) for name, writes in names.items()
    ]


def ran() -> list[str]:
    """Which stages ran since the last question."""
    log = Path("ran")
    names = log.read_text().split()
    log.unlink()
    return names


def test_after_a_failure_only_what_is_left_runs(
    commands: list[Command], capfd: pytest.CaptureFixture[str]
) -> None:
    finished = Finished(Path("run"))
    Path("FAIL-second").touch()
    assert run_all(commands, finished) == 75
    assert ran() == ["first", "second"]
    assert capfd.readouterr().out == "\npython stage.py first\n\npython stage.py second\n"
    Path("FAIL-second").unlink()
    assert run_all(commands, finished) == 0
    assert ran() == ["second", "third", "closing"]
    assert run_all(commands, finished) == 0
    assert ran() == ["closing"]  # which leaves nothing that could say so
    assert [path.read_text() for path in sorted(Path("run/.finished").iterdir())] == [
        f"python stage.py {name}\n" for name in ("first", "second", "third")
    ]


def test_what_was_removed_or_is_asked_otherwise_runs_again(commands: list[Command]) -> None:
    finished = Finished(Path("run"))
    assert run_all(commands[:2], finished) == 0
    ran()
    Path("first").unlink()
    otherwise = Command("second", "stage.py", ("second", "--more"), (), (Path("second"),))
    assert run_all([commands[0], otherwise], finished) == 0
    assert ran() == ["first", "second"]


def test_a_stage_that_a_signal_ended_is_told_as_a_shell_tells_it(commands: list[Command]) -> None:
    Path("stage.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert run_all(commands[:1], Finished(Path("run"))) == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_request_to_stop_reaches_the_stage(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "stage.py").write_text(
        "import pathlib, signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(75))\n"
        "pathlib.Path('started').touch()\n"
        "time.sleep(60)\n"
    )
    program = (
        "import sys; from pathlib import Path; from pipeline.studies.commands import Command\n"
        "from pipeline.studies.running import Finished, run_all\n"
        "sys.exit(run_all([Command('stage', 'stage.py', (), (), ())], Finished(Path('run'))))"
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    runner.send_signal(number)
    assert runner.wait(timeout=60) == 75


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["evaluation.short_context_length=64"], "leaves no far context: it must be shorter than the long"),
        (["evaluation.k=[53]"], "k 53 is more than the 52 far tokens of the first target"),
        (["evaluation.rules=[leave_one_aut]"], "did you mean 'leave_one_out'"),
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
        (["evaluation.rules=[leave_one_out_search]", "evaluation.k=[40]"], "does not pay for rule"),
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
    assert lines[2].startswith("# tiny-short-seed0: trains on 0.0 M tokens, ")
    assert all(line.startswith(f"python {ROOT}/") for line in lines[1::2])
    assert lines[-1].startswith("# in all, of what has not finished: trains on 0.0 M tokens, 0.04 M token")
    assert not (path.parent / "run").exists()


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
