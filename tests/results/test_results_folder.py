"""Shards are whole or absent, never mixed; a killed run goes on; what is damaged is not read."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measured_documents import contents, flip
from sparsity_length.programs.query import connect, select
from written_results import length_losses as rows

from sparsity_length.cli import InputError
from sparsity_length.results import files, write
from sparsity_length.results.read import Results
from sparsity_length.results.schemas import SCHEMAS, results_page
from sparsity_length.results.write import StageOutput

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"short_context_length": 16, "rules": ["leave_one_out"]}
INPUTS = {"checkpoint": "aa", "documents": "bb"}
FIRST = "00000-of-00002"
SECOND = "00001-of-00002"
SQL = "SELECT model, mean_loss FROM length_losses ORDER BY model, mean_loss"


def open_output(results: Path, model: str = "a", **changes: Any) -> StageOutput:
    settings = {"settings": SETTINGS, "inputs": INPUTS, "num_shards": 2}
    return StageOutput(results, "length_losses", model, **(settings | changes))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    results = tmp_path / "lr=1" / "model=foo"  # parents that look like partitions are no columns
    for model, offset in {"a": 0.0, "b%2Fc": 4.0}.items():
        for shard in (1, 0):
            open_output(results, model).write_shard(shard, rows(1.0 + shard + offset))
    return results


def marks(results: Path) -> Path:
    return results / "_stages/length_losses/a"


def shards(results: Path) -> Path:
    return results / "length_losses/a"


def read_by_all(results: Path) -> list[tuple[str, float]]:
    """The rows, by the analysis and by SQL, which must agree."""
    frame = Results(results).frame("length_losses")
    assert list(frame.columns) == SCHEMAS["length_losses"].names
    of_analysis = list(zip(frame["model"], frame["mean_loss"], strict=True))
    assert select(connect(results, SQL), SQL).fetchall() == of_analysis
    return of_analysis


def refused_by_all(results: Path) -> str:
    refused = set()
    for read in (
        lambda: Results(results).frame("length_losses"),
        lambda: Results(results).facts("length_losses"),
        lambda: connect(results, SQL),
    ):
        with pytest.raises(InputError) as error:
            read()
        refused.add(str(error.value))
    assert len(refused) == 1
    return refused.pop()


def test_what_is_written_is_read_back(results: Path) -> None:
    assert read_by_all(results) == [("a", 1.0), ("a", 2.0), ("b%2Fc", 5.0), ("b%2Fc", 6.0)]
    assert Results(results).tables == ["length_losses"]
    some = Results(results).frame("length_losses", ["mean_loss"], {"model": ["b%2Fc"], "chunk_index": [0]})
    assert list(some.columns) == ["model", "mean_loss"]
    assert some["mean_loss"].tolist() == [5.0, 6.0]


def test_another_configuration_is_refused_by_name(tmp_path: Path) -> None:
    open_output(tmp_path).write_shard(0, rows(1.0))
    for changes, sentence in (
        ({"settings": SETTINGS | {"short_context_length": 32}}, "short_context_length was 16, now 32"),
        ({"num_shards": 3}, "num_shards was 2, now 3"),
        ({"inputs": INPUTS | {"checkpoint": "cc"}}, "checkpoint was 'aa', now 'cc'"),
    ):
        with pytest.raises(InputError, match=sentence):
            open_output(tmp_path, **changes)
    assert open_output(tmp_path, settings=SETTINGS | {"null": None}).pending_shards() == [1]


def write_and_be_killed(results: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write in a process of its own, which SIGKILL ends; forked, so that nothing is imported anew."""

    def kill(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write_half(_: Any, path: Path, **__: Any) -> None:
        path.write_bytes(b"half")
        kill()

    process = os.fork()
    if process == 0:
        try:
            if when == "before the mark":
                monkeypatch.setattr(write, "write_json", kill)
            else:
                monkeypatch.setattr(files.pq, "write_table", write_half)
            output = open_output(results)
            with output.writing():
                output.write_shard(1, rows(2.0))
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("when", ["before the mark", "within the data"])
def test_a_shard_is_done_again_by_whoever_comes_after_a_kill(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_output(tmp_path / "whole").write_shard(0, rows(1.0))
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    open_output(tmp_path / "whole").write_shard(1, rows(2.0))
    write_and_be_killed(tmp_path / "killed", when, monkeypatch)
    if when == "within the data":  # which readers that know of no marks must not find
        assert [path.name for path in shards(tmp_path / "killed").iterdir()] == [f"{FIRST}.parquet"]
    output = open_output(tmp_path / "killed")
    assert output.pending_shards() == [1]
    with output.writing():
        output.write_shard(1, rows(2.0))
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def swap(path: Path) -> None:
    """With the other shard of the same result, so that all but the content is right."""
    shutil.copy(path.with_name(f"{FIRST}.parquet"), path)


def forget() -> None:
    """What this process knows of files that did not change: a clock tick is longer than a flip takes."""
    files._sha256.cache_clear()


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink, swap])
def test_a_damaged_shard_counts_as_not_measured_and_is_measured_anew(
    results: Path, damage: Callable[[Path], None]
) -> None:
    whole = contents(results)
    damage(shards(results) / f"{SECOND}.parquet")
    forget()
    refused = refused_by_all(results)
    assert f"{SECOND}.parquet " in refused
    output = open_output(results)
    assert output.pending_shards() == [1]
    output.write_shard(1, rows(2.0))
    assert contents(results) == whole


def test_incomplete_results_are_read_with_a_warning_that_counts(
    results: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (marks(results) / f"{SECOND}.done").unlink()
    # Who asks for another model, or for no result, is not concerned.
    assert len(Results(results).frame("length_losses", None, {"model": ["b%2Fc"]})) == 2
    assert not caplog.messages
    assert read_by_all(results) == [("a", 1.0), ("b%2Fc", 5.0), ("b%2Fc", 6.0)]
    (said,) = caplog.messages
    assert "holds 1 of 2 shards" in said
    with pytest.raises(InputError, match="holds 1 of 2 shards"):
        Results(results).sources("length_losses", must_be_complete=True)


def test_results_of_other_settings_copied_over_are_refused(results: Path) -> None:
    other = open_output(results / "other", settings=SETTINGS | {"short_context_length": 32})
    other.write_shard(1, rows(2.0))
    for place in (marks, shards):
        shutil.copytree(place(results / "other"), place(results), dirs_exist_ok=True)
    for read in (lambda: Results(results).frame("length_losses"), lambda: connect(results, SQL)):
        with pytest.raises(InputError, match=f"was 16, now 32 in 'a' of .*{SECOND}."):
            read()


def test_shards_of_two_are_not_read_beside_shards_of_three(results: Path) -> None:
    """Both hold the same documents."""
    for shard in range(3):
        open_output(results / "other", num_shards=3).write_shard(shard, rows(2.0))
    for place in (marks, shards):
        shutil.copytree(place(results / "other"), place(results), dirs_exist_ok=True)
    assert "holds 5 of " in refused_by_all(results)


def test_evaluators_of_other_choices_are_not_read_together(tmp_path: Path) -> None:
    """What a model chose is read with all who tried it; not with one who tried an earlier choice of it."""
    for evaluator, choices in ((None, None), ("b", "cc"), ("d", "cc")):
        inputs = INPUTS | ({"evaluator": evaluator, "choices": choices} if evaluator else {})
        output = open_output(tmp_path, evaluator=evaluator, inputs=inputs, num_shards=1)
        output.write_shard(0, rows(1.0))
    assert len(Results(tmp_path).frame("length_losses")) == 3
    inputs = INPUTS | {"choices": "other", "evaluator": "f"}
    open_output(tmp_path, evaluator="f", inputs=inputs, num_shards=1).write_shard(0, rows(1.0))
    with pytest.raises(InputError, match="choices was 'cc', now 'other' in 'a'"):
        Results(tmp_path).frame("length_losses")


def test_results_of_version_three_are_refused(results: Path) -> None:
    (results / "_stages" / "length_losses" / "a").rename(results / "_stages" / "length_losses" / "model=a")
    for read in (lambda: Results(results).frame("length_losses"), lambda: open_output(results, "new")):
        with pytest.raises(
            InputError, match="model=a is of schema version 3, and this code reads 4; measure it"
        ):
            read()


def test_the_page_of_results_equals_the_schemas() -> None:
    page = (ROOT / "pipeline/RESULTS.md").read_text(encoding="utf-8")
    assert page == results_page(page), "run: python -m sparsity_length.results.schemas"
