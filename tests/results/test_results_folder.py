"""Shards are whole or absent, never mixed; damage is not read; outputs stay; intervals cover the truth."""

import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured_documents import contents, flip
from scipy import stats
from sparsity_length.programs.query import connect, select
from written_results import length_losses as rows

from sparsity_length.cli import InputError
from sparsity_length.results import files, write
from sparsity_length.results.read import Results
from sparsity_length.results.schemas import SCHEMAS, results_page
from sparsity_length.results.statistics import ratio_of_sums
from sparsity_length.results.table import as_table

SETTINGS = {"short_context_length": 16, "rules": ["leave_one_out"]}
INPUTS = {"checkpoint": "aa", "documents": "bb"}
FIRST = "00000-of-00002"
SECOND = "00001-of-00002"
MARKS = "_stages/length_losses/a"
SHARDS = "length_losses/a"
SQL = "SELECT model, mean_loss FROM length_losses ORDER BY model, mean_loss"


def open_output(results: Path, model: str = "a", **changes: Any) -> write.StageOutput:
    return write.StageOutput(
        results,
        "length_losses",
        model,
        **({"settings": SETTINGS, "inputs": INPUTS, "num_shards": 2} | changes),
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    results = tmp_path / "lr=1" / "model=foo"  # parents that look like partitions are no columns
    for model, offset in {"a": 0.0, "b%2Fc": 4.0}.items():
        for shard in (1, 0):
            open_output(results, model).write_shard(shard, rows(1.0 + shard + offset))
    return results


def read_by_all(results: Path) -> list[tuple[str, float]]:
    """The rows, by the analysis and by SQL, which must agree."""
    frame = Results(results).frame("length_losses")
    assert list(frame.columns) == SCHEMAS["length_losses"].names
    of_analysis = list(zip(frame["model"], frame["mean_loss"], strict=True))
    assert select(connect(results, SQL), SQL).fetchall() == of_analysis
    return of_analysis


def refused_by_all(results: Path, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as of_analysis:
        Results(results).frame("length_losses")
    with pytest.raises(InputError) as of_sql:
        connect(results, SQL)
    assert str(of_analysis.value) == str(of_sql.value)


def test_what_is_written_is_read_back(results: Path) -> None:
    assert read_by_all(results) == [("a", 1.0), ("a", 2.0), ("b%2Fc", 5.0), ("b%2Fc", 6.0)]
    assert Results(results).tables == ["length_losses"]
    some = Results(results).frame("length_losses", ["mean_loss"], {"model": ["b%2Fc"], "chunk_index": [0]})
    assert some.to_dict("list") == {"model": ["b%2Fc", "b%2Fc"], "mean_loss": [5.0, 6.0]}
    which = "SELECT table_name FROM information_schema.tables"
    assert select(connect(results, which), which).fetchall() == [("length_losses",)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"settings": SETTINGS | {"short_context_length": 32}}, "short_context_length was 16, now 32"),
        ({"num_shards": 3}, "num_shards was 2, now 3"),
        ({"inputs": INPUTS | {"checkpoint": "cc"}}, "checkpoint was 'aa', now 'cc'"),
    ],
)
def test_another_configuration_is_refused_by_name(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    open_output(tmp_path).write_shard(0, rows(1.0))
    with pytest.raises(InputError, match=sentence):
        open_output(tmp_path, **changes)
    assert open_output(tmp_path, settings=SETTINGS | {"null": None}).pending_shards() == [1]


def write_second(results: Path) -> None:
    """Of the first model's shards, which is what is missing."""
    output = open_output(results)
    assert output.pending_shards() == [1]
    with output.writing():
        output.write_shard(1, rows(2.0))


@pytest.mark.parametrize(("within", "left"), [("write_json", [FIRST, SECOND]), ("write_parquet", [FIRST])])
def test_a_shard_is_done_again_by_whoever_comes_after_a_kill(
    results: Path, within: str, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the mark, or in the middle of the data."""
    whole = contents(results)
    (results / MARKS / f"{SECOND}.done").unlink()
    (results / SHARDS / f"{SECOND}.parquet").unlink()

    def be_killed(path: Path, _: Any) -> None:
        if within == "write_parquet":
            path.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    process = os.fork()  # so that nothing is imported anew
    if process == 0:
        try:
            monkeypatch.setattr(write, within, be_killed)
            write_second(results)
        finally:
            os._exit(1)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    # Readers that know of no marks must not find half a file.
    assert sorted(path.name for path in (results / SHARDS).iterdir()) == [f"{name}.parquet" for name in left]
    write_second(results)
    assert contents(results) == whole


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_a_damaged_shard_counts_as_not_measured_and_is_measured_anew(
    results: Path, damage: Callable[[Path], None]
) -> None:
    whole = contents(results)
    damage(results / SHARDS / f"{SECOND}.parquet")
    # What this process knows of files that did not change: a clock tick is longer than a flip takes.
    files._sha256.cache_clear()
    refused_by_all(results, f"{SECOND}.parquet ")
    with pytest.raises(InputError, match=f"{SECOND}.parquet "):
        Results(results).facts("length_losses")
    write_second(results)
    assert contents(results) == whole


def test_incomplete_results_are_read_with_a_warning_that_counts(
    results: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (results / MARKS / f"{SECOND}.done").unlink()
    # Who asks for another model, or for no result, is not concerned.
    assert len(Results(results).frame("length_losses", None, {"model": ["b%2Fc"]})) == 2
    assert not caplog.messages
    assert read_by_all(results) == [("a", 1.0), ("b%2Fc", 5.0), ("b%2Fc", 6.0)]
    assert ["holds 1 of 2 shards" in message for message in caplog.messages] == [True]
    with pytest.raises(InputError, match="holds 1 of 2 shards"):
        Results(results).sources("length_losses", must_be_complete=True)


@pytest.mark.parametrize(
    ("written", "changes", "sentence"),
    [
        ([1], {"settings": SETTINGS | {"short_context_length": 32}}, f"was 16, now 32 in 'a' of .*{SECOND}."),
        ([0, 1, 2], {"num_shards": 3}, "holds 5 of "),  # the same documents
    ],
)
def test_other_results_copied_over_are_refused(
    results: Path, written: list[int], changes: dict[str, Any], sentence: str
) -> None:
    for shard in written:
        open_output(results / "other", **changes).write_shard(shard, rows(2.0))
    for kind in (MARKS, SHARDS):
        shutil.copytree(results / "other" / kind, results / kind, dirs_exist_ok=True)
    refused_by_all(results, sentence)


def test_evaluators_of_other_choices_are_not_read_together(tmp_path: Path) -> None:
    """What a model chose is read with all who tried it; not with one who tried an earlier choice of it."""
    for evaluator, choices in ((None, None), ("b", "cc"), ("d", "cc")):
        inputs = INPUTS | {"evaluator": evaluator, "choices": choices}
        open_output(tmp_path, evaluator=evaluator, inputs=inputs, num_shards=1).write_shard(0, rows(1.0))
    assert len(Results(tmp_path).frame("length_losses")) == 3
    inputs = INPUTS | {"evaluator": "f", "choices": "other"}
    open_output(tmp_path, evaluator="f", inputs=inputs, num_shards=1).write_shard(0, rows(1.0))
    with pytest.raises(InputError, match="choices was 'cc', now 'other' in 'a'"):
        Results(tmp_path).frame("length_losses")


def test_results_of_version_three_are_refused(results: Path) -> None:
    (results / MARKS).rename(results / "_stages" / "length_losses" / "model=a")
    sentence = "model=a is of schema version 3, and this code reads 4; measure it"
    refused_by_all(results, sentence)
    with pytest.raises(InputError, match=sentence):
        open_output(results, "new")


def test_the_page_of_results_equals_the_schemas() -> None:
    page = (Path(__file__).resolve().parents[2] / "pipeline/RESULTS.md").read_text(encoding="utf-8")
    assert page == results_page(page), "run: python -m sparsity_length.results.schemas"


def test_a_fifo_and_a_device_stay_what_they_are(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    link = tmp_path / "link"
    link.symlink_to("fifo")
    of_fifo = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)  # which waits for nobody
    for path in (fifo, link):
        files.write_text(path, "naïve")
        assert os.read(of_fifo, 99).decode() == "naïve"
    files.write_text(Path(os.devnull), "page")
    assert Path(os.devnull).is_char_device() and fifo.is_fifo() and link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "link"]


def test_an_open_file_goes_on_where_it_was(tmp_path: Path) -> None:
    """`--json /dev/stdout > file`: neither replaced, nor written over from its start."""
    path = tmp_path / "file"
    with path.open("wb", buffering=0) as file:
        file.write(b"before ")
        (tmp_path / "link").symlink_to(f"/dev/fd/{file.fileno()}")
        files.write_text(Path(f"/proc/self/fd/{file.fileno()}"), "one ")
        files.write_text(tmp_path / "link", "two ")
        file.write(b"after")
    assert path.read_text() == "before one two after"


def test_a_failed_writer_leaves_a_stream_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), files.whole_or_absent(Path("-")) as temporary:
        temporary.write_text("half of a p")
        raise ZeroDivisionError
    assert capfd.readouterr().out == ""


def test_two_outputs_are_not_one_and_none_is_what_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").touch()
    Path("link").symlink_to("a")
    Path("circle").symlink_to("circle")
    files.write_text(Path("circle"), "page")
    assert files.stream_of(Path("circle")) is None and Path("circle").read_text() == "page"
    files.refuse_outputs({"--out": Path("a"), "--json": Path("b"), "--csv": None})
    files.refuse_outputs({"--out": Path("/dev/null"), "--json": Path("/dev/null"), "--csv": Path("-")})
    os.mknod("socket", stat.S_IFSOCK)
    with Path("a").open() as only_read:
        for one, other, sentence in (
            ("a", "./a", "--out and --json are both"),
            ("new", f"{tmp_path}/new", "--out and --json are both"),
            ("a", "link", "--out and --json are both"),
            ("-", "/dev/stdout", "--out and --json are both"),
            ("socket", "b", "socket is a socket"),
            (f"/dev/fd/{only_read.fileno()}", "b", r"/dev/fd/\d+ is not open for writing"),
        ):
            with pytest.raises(InputError, match=sentence):
                files.refuse_outputs({"--out": Path(one), "--json": Path(other)})


@pytest.mark.parametrize(
    ("word", "width"),
    [
        ("cat", 3),
        ("伦敦", 4),
        ("ﾛﾝﾄﾞﾝ", 5),
        ("か\u3099", 2),
        ("cafe\u0301", 4),
        ("서울", 4),
        ("ที่", 1),
        ("كِتَاب", 4),
        ("🚀", 2),
    ],
)
def test_a_column_is_as_wide_as_a_terminal_shows_it(word: str, width: int) -> None:
    blank = " " * (8 - width)
    table = as_table(["left", "right"], [[word, word], ["12345678", 87654321]], ["right"])
    assert table.splitlines()[1:] == [f"{word}{blank}  {blank}{word}", "12345678  87654321"]


def test_agrees_with_scipy_on_a_ratio() -> None:
    generator = np.random.default_rng(5)
    denominators = generator.gamma(3.0, 1.0, 60)
    numerators = 0.4 * denominators + generator.normal(0, 0.5, 60)
    ours = ratio_of_sums(numerators, denominators)
    theirs = stats.bootstrap(
        (numerators, denominators),
        lambda n, d, axis: n.sum(axis) / d.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=10_000,
        method="percentile",
        random_state=0,
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx(
        (theirs.low, theirs.high), abs=0.03 * (theirs.high - theirs.low)
    )


@pytest.mark.parametrize("num_documents", [3, 19, 24, 49])
def test_intervals_of_few_documents_cover_the_truth(num_documents: int) -> None:
    """The mean gain of 8 to 32 targets per document, 0.1 nats, varies by document and by target."""
    generator = np.random.default_rng(num_documents)
    is_covered = []
    for _ in range(600):
        counts = generator.integers(8, 33, num_documents)
        gains = counts * generator.normal(0.1, 0.1, num_documents)
        gains += np.sqrt(counts) * generator.normal(0, 0.5, num_documents)
        interval = ratio_of_sums(gains, counts.astype(float))
        is_covered.append(interval.low <= 0.1 <= interval.high)
    assert 0.93 <= np.mean(is_covered) <= 0.97
