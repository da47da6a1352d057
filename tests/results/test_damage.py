"""A result that was damaged is never read, and is repaired by running its stage again."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from measured_documents import contents
from test_results_folder import INPUTS, SETTINGS, open_output, rows

from pipeline.cli import InputError
from pipeline.query import connect, run_query
from pipeline.results import files as folder_lock
from pipeline.results import files as marks
from pipeline.results.export import write_manifest
from pipeline.results.read import read_artefact, read_settings
from pipeline.results.write import StageOutput

SQL = "SELECT avg(mean_loss), count(*) FROM length_losses"
MARKS, SHARDS = "_stages/length_losses/model=a", "length_losses/model=a"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write(open_output(tmp_path / "results"), [0, 1])


def write(output: StageOutput, shards: list[int]) -> Path:
    for shard in shards:
        output.write_shard(shard, rows(1.5 + shard, 2.5 + shard, 7.25))
    return output._results


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def swap(path: Path) -> None:
    """With the other shard of the same result, so that all but the content is right."""
    shutil.copy(path.with_name("00000-of-00002.parquet"), path)


def forget() -> None:
    """What this process knows of files that did not change: a clock tick is longer than a flip takes."""
    marks._damage_inside.cache_clear()
    marks._read_mark.cache_clear()


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink, swap])
def test_a_damaged_shard_counts_as_not_measured_and_is_measured_anew(
    results: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    whole = contents(results)
    damage(results / SHARDS / "00001-of-00002.parquet")
    forget()
    with pytest.raises(
        InputError, match=r"00001-of-00002.parquet is (damaged|missing).* run python pipeline"
    ):
        read_artefact(results, "length_losses")
    output = open_output(results)
    assert output.pending_shards() == [1]
    assert caplog.text.count("the shard counts as not measured") == 1
    assert "misses 1 of 2 shards" in output.state()
    write(output, output.pending_shards())
    assert contents(results) == whole
    assert len(read_artefact(results, "length_losses")) == 6


def test_killed_while_it_repairs_a_shard_it_does_not_hold_it_for_whole(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(results / SHARDS / "00001-of-00002.parquet")
    monkeypatch.setattr(marks, "write_json", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(open_output(results), [1])
    assert not (results / MARKS / "00001-of-00002.done").exists()


def test_another_runs_file_is_told_from_a_damaged_one_and_not_replaced(results: Path, tmp_path: Path) -> None:
    other = open_output(tmp_path / "other", settings=SETTINGS | {"short_context_length": 32})
    path = results / SHARDS / "00001-of-00002.parquet"
    shutil.copy(write(other, [1]) / SHARDS / path.name, path)
    sentence = r"parquet was written by another run, with other settings: short_context_length was 32, now 16"
    with pytest.raises(InputError, match=sentence):
        read_artefact(results, "length_losses")
    with pytest.raises(InputError, match=r"with other settings: short_context_length was 32.* move it away"):
        open_output(results).pending_shards()


@pytest.mark.parametrize(
    "content", [None, "", "{", "[1]", '{"settings": 3}', '{"settings": {}, "inputs": {}}']
)
def test_a_settings_file_that_is_gone_or_garbage(results: Path, content: str | None) -> None:
    path = results / MARKS / "settings.json"
    whole = contents(results)
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
        with pytest.raises(InputError, match=r"settings.json is damaged: .* run python pipeline"):
            read_settings(results, "length_losses")
    with pytest.raises(InputError, match="made with other settings: short_context_length was 16, now 32"):
        open_output(results, settings=SETTINGS | {"short_context_length": 32})
    with pytest.raises(InputError, match="inputs checkpoint differs"):
        open_output(results, inputs=INPUTS | {"checkpoint": "cc"})
    output = open_output(results)
    assert output.pending_shards() == []
    assert not output.is_done()
    with output.writing():
        pass
    assert contents(results) == whole
    assert read_settings(results, "length_losses")["a"]["short_context_length"] == 16


def test_nothing_left_that_tells_what_made_it(results: Path) -> None:
    (results / MARKS / "settings.json").unlink()
    shutil.rmtree(results / SHARDS)
    with pytest.raises(InputError, match="so are all shards of model 'a' .* remove .*, and length_losses"):
        open_output(results)
    for path in (results / MARKS).iterdir():
        path.unlink()
    (results / MARKS / "settings.json").write_text("{")
    with pytest.raises(InputError, match=r"settings.json is damaged; remove .*settings.json"):
        open_output(results)


def test_no_flipped_byte_gives_another_number(results: Path) -> None:
    expected = run_query(connect(results, SQL), SQL, 9)[1]
    settings = read_settings(results, "length_losses")
    assert expected[0][0] == pytest.approx(read_artefact(results, "length_losses")["mean_loss"].mean())
    files = [path for path in sorted(results.rglob("*")) if path.is_file()]
    generator, num_refused = random.Random(0), 0
    for _ in range(200):
        path = generator.choice(files)
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        path.write_bytes(flipped)
        forget()
        try:
            assert run_query(connect(results, SQL), SQL, 9)[1] == expected
            assert read_settings(results, "length_losses") == settings
        except InputError:
            num_refused += 1
        path.write_bytes(whole)
    assert num_refused > 100


def test_pages_have_checksums_for_readers_that_know_no_marks(results: Path) -> None:
    path = results / SHARDS / "00000-of-00002.parquet"
    whole = path.read_bytes()
    place = whole.index(b"\x28\xb5\x2f\xfd") + 12  # inside the first zstd frame of a page
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    (results / "_stages").rename(results / "elsewhere")
    write_manifest(results)  # of the damaged file, so that its hash is right
    with pytest.raises(InputError, match=r"00000-of-00002.parquet is damaged: it is no whole Parquet"):
        read_artefact(results, "length_losses")


def test_two_writers_of_one_part_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "_PATIENCE_SECONDS", 0.05)
    output = open_output(tmp_path / "results")
    with output.writing("task-0-of-2"), open_output(tmp_path / "results").writing("task-1-of-2"):
        for part in ("task-0-of-2", "task-0-of-3", None):
            with (
                pytest.raises(InputError, match=rf"in use by process {os.getpid()} on .* another --results"),
                open_output(tmp_path / "results").writing(part),
            ):
                pass
    assert not (tmp_path / "results").exists()  # nobody wrote, so nothing was claimed


def test_of_two_configurations_that_start_together_the_second_is_refused(tmp_path: Path) -> None:
    first = open_output(tmp_path)
    second = open_output(tmp_path, settings=SETTINGS | {"short_context_length": 32})
    with first.writing("task-0-of-2"), second.writing("task-1-of-2"):
        write(first, [0])
        with pytest.raises(InputError, match="made with other settings: short_context_length was 16, now 32"):
            write(second, [1])
    made_by = json.loads((tmp_path / MARKS / "settings.json").read_text())
    assert made_by["settings"]["short_context_length"] == 16


def test_leftovers_of_a_killed_writer_go_with_the_next_one(results: Path) -> None:
    whole = contents(results)
    (results / SHARDS / "00001-of-00002.parquet").unlink()
    for name in (f"{MARKS}/settings-0f3a.json", f"{SHARDS}/.00001-of-00002.parquet.0f3a.part",
                 f"{MARKS}/.00001-of-00002.done.0f3a.part"):  # fmt: skip
        (results / name).write_text("half a file")
    write(open_output(results), [1])
    assert contents(results) == whole
