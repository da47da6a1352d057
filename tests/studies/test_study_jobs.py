"""How many commands run at once, how measuring is dealt, and what is shown on which terminal."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.studies import run as live_lines
from pipeline.studies import run as slots
from pipeline.studies.commands import Command, Measuring
from pipeline.studies.file import Evaluation
from pipeline.studies.run import GIBIBYTE, Line, LiveLines, Schedule, Slots, duration, num_shares
from pipeline.study import parser


def measuring(data: Path, max_documents: int | None) -> Command:
    evaluation = Evaluation(short_context_length=1, long_context_length=2, max_documents=max_documents)
    return Command("measure", "m.py", (), (), (), (), Measuring("loss_differences", evaluation, data, ()))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The manifest of 100 evaluation documents."""
    manifest = {
        "stage": "tokenize_c4", "schema_version": 1, "token_dtype": "uint16",
        "vocabulary_size": 9, "eos_token_id": 0, "files": {},
        "counts": {"train_tokens": 0, "evaluation_documents": 100},
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


@pytest.mark.parametrize(
    ("max_documents", "jobs", "number"), [(None, 8, 4), (64, 8, 2), (64, 1, 1), (9, 8, 1)]
)
def test_measuring_is_dealt_to_as_many_as_there_are_shards(
    data: Path, max_documents: int | None, jobs: int, number: int
) -> None:
    assert num_shares(measuring(data, max_documents), jobs) == number


def test_a_command_has_finished_once_all_its_shares_have(data: Path) -> None:
    command = measuring(data, 64)
    closing = Command("closing", "c.py", (), ("measure",), (), ())
    schedule = Schedule([command, closing], (), 2)
    first, second = schedule.next(), schedule.next()
    assert first is not None and second is not None and schedule.next() is None
    assert (first.name, second.name) == ("measure-1-of-2", "measure-2-of-2")
    assert (first.environment, second.environment) == (
        {"RANK": "0", "WORLD_SIZE": "2"}, {"RANK": "1", "WORLD_SIZE": "2"},
    )  # fmt: skip
    assert [schedule.ended(second), schedule.ended(first)] == [False, True]
    last = schedule.next()
    assert last is not None and (last.name, last.environment, schedule.num_finished) == ("closing", {}, 1)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Four cores and 10 GiB of memory."""
    monkeypatch.setattr(slots, "num_cores", lambda: 4)
    monkeypatch.setattr(slots, "free_bytes", lambda: 10 * GIBIBYTE)
    return {}


def test_as_many_commands_as_cores_have_threads_for(
    machine: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert slots.slots(None, 1).number == 4
    assert slots.slots(None, 3).number == slots.slots(None, 9).number == 1
    assert slots.slots(7, 1, GIBIBYTE).number == 7
    assert slots.slots(None, 1, gpus=("3", "5")).number == 2
    assert not caplog.records


def test_memory_limits_the_commands_and_that_is_said(
    machine: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert slots.slots(7, 1, 4 * GIBIBYTE).number == 2
    assert slots.slots(7, 1, 40 * GIBIBYTE).number == 1
    assert caplog.messages == [
        "2 commands at once, not 7: 10.0 GiB of memory are free, and a command takes about 4.0",
        "1 command at once, not 7: 10.0 GiB of memory are free, and a command takes about 40.0",
    ]


def test_a_container_has_less_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_CGROUP", tmp_path)
    free, cores = slots.free_bytes(), slots.num_cores()
    assert free > 10_000_000 and cores >= 1
    (tmp_path / "memory.max").write_text("9000000\n")
    (tmp_path / "memory.current").write_text("8000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 500000\nactive_file 7\n")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert (slots.free_bytes(), slots.num_cores()) == (1_500_000, 1)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert (slots.free_bytes() > 10_000_000, slots.num_cores()) == (True, cores)


def test_threads_are_the_studys_and_a_gpu_is_the_places() -> None:
    environment = Slots(3, 2, ("3", "5")).environment(2)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "2"
    assert environment["CUDA_VISIBLE_DEVICES"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in set(Slots(1).environment(0)) - set(slots.os.environ)


@pytest.mark.parametrize("jobs", ["0", "-1", "two"])
def test_jobs_are_a_whole_number_of_at_least_one(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["study.yaml", "--jobs", jobs])
    assert "argument --jobs: " in capsys.readouterr().err


def shown(monkeypatch: pytest.MonkeyPatch, **console: Any) -> str:
    """What a console of these properties is sent of two running commands and a sentence."""
    monkeypatch.setattr(live_lines, "_SECONDS_BETWEEN_DRAWINGS", 0)
    monkeypatch.setattr(live_lines, "_SECONDS_BETWEEN_PLAIN_LINES", 0)
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    with LiveLines(
        Console(file=file, _environ={"TERM": "xterm"} | console.pop("environ", {}), **console)
    ) as lines:
        lines.say("finished before: data")
        lines.draw([Line("long", 61, "training:  5 %|█▌ |"), Line("short-pose", 3723, "x" * 300)], "1 of 9")
    return file.getvalue()


def test_a_terminal_has_a_line_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = shown(monkeypatch, force_terminal=True, width=60).partition("finished before: data\n")[2]
    assert "long           1:01  training:  5 %|█▌ |" in drawn
    assert "short-pose  1:02:03  " + "x" * 39 + "\n" in drawn
    assert "1 of 9" in drawn


def test_what_a_terminal_cannot_show_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "encoding", "ascii")
    assert "training:  5 %|?? |" in shown(monkeypatch, force_terminal=True, width=60)


@pytest.mark.parametrize(
    "console",
    [
        {"force_terminal": False},
        {"force_terminal": True, "width": 20},
        {"force_terminal": True, "environ": {"TERM": "dumb"}},
    ],
)  # fmt: skip
def test_elsewhere_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch, console: dict[str, Any]) -> None:
    assert shown(monkeypatch, **console).splitlines() == [
        "study: finished before: data",
        "study: long  1:01  training:  5 %|█▌ |",
        "study: short-pose  1:02:03  " + "x" * 300,
    ]


def test_no_colours_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = shown(monkeypatch, force_terminal=True, width=60, environ={"COLORTERM": "truecolor"})
    assert not any(f"\x1b[{colour}" in drawn for colour in ("3", "4", "9", "38"))
    assert duration(59.9) == "0:59"
