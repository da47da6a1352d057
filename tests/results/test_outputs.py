"""Outputs that are no regular file: written into, and still what they were."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from sparsity_length.cli import InputError
from sparsity_length.results.files import refuse_same, stream_of, whole_or_absent, write_text


def test_a_fifo_and_a_device_stay_what_they_are(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    link = tmp_path / "link"
    link.symlink_to("fifo")
    read: list[str] = []
    for name in (fifo, link):
        reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
        reader.start()
        write_text(name, "naïve\n" * 9)
        reader.join()
    assert read == ["naïve\n" * 9] * 2 and stat.S_ISFIFO(fifo.stat().st_mode) and link.is_symlink()

    terminal, its_end = os.openpty()
    device = Path(os.ttyname(its_end))
    write_text(device, "page")
    assert os.read(terminal, 9) == b"page" and device.is_char_device()
    write_text(Path("/dev/null"), "page")
    assert Path("/dev/null").is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "link"]


def test_an_open_file_goes_on_where_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`--json /dev/stdout > file`: neither replaced, nor written over from its start."""
    path = tmp_path / "file"
    with path.open("w") as file:
        file.write("before ")
        file.flush()
        (tmp_path / "link").symlink_to(f"/dev/fd/{file.fileno()}")
        write_text(Path(f"/proc/self/fd/{file.fileno()}"), "one ")
        write_text(tmp_path / "link", "two ")
        file.write("after")
    assert path.read_text() == "before one two after"
    for name in ("-", "/dev/stdout"):
        write_text(Path(name), "page ")
    assert capfd.readouterr().out == "page page "


def test_a_failed_writer_leaves_a_stream_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), whole_or_absent(Path("-")) as temporary:
        temporary.write_text("half of a p")
        raise ZeroDivisionError
    assert capfd.readouterr().out == ""


def test_two_outputs_are_not_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").touch()
    Path("link").symlink_to("a")
    Path("circle").symlink_to("circle")
    refuse_same({"--out": Path("a"), "--json": Path("b"), "--csv": None})
    refuse_same({"--out": Path("/dev/null"), "--json": Path("/dev/null"), "--csv": Path("-")})
    for one, other in (("a", "./a"), ("new", f"{tmp_path}/new"), ("a", "link"), ("-", "/dev/stdout")):
        with pytest.raises(InputError, match="--out and --json are both"):
            refuse_same({"--out": Path(one), "--json": Path(other)})
    write_text(Path("circle"), "page")
    assert stream_of(Path("circle")) is None and Path("circle").read_text() == "page"


def test_what_cannot_be_written_to_is_refused_before_the_work(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
    with pytest.raises(InputError, match="socket is a socket"):
        refuse_same({"--out": tmp_path / "socket"})
    (tmp_path / "file").touch()
    with (tmp_path / "file").open() as file:
        name = Path(f"/dev/fd/{file.fileno()}")
        with pytest.raises(InputError, match=f"{name} is not open for writing"):
            refuse_same({"--out": name})
    with pytest.raises(InputError, match=f"{name} is not open for writing"):
        refuse_same({"--out": name})
