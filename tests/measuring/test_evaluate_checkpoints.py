"""What the measuring stages share: documents taken or skipped, folders resumed or refused."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from measured_documents import LENGTH_LOSSES, command_line, contents, measure, write_checkpoint, write_data
from olmo.model import OLMo

from pipeline import influential_tokens, loss_differences
from pipeline.cli import InputError
from pipeline.measuring import stage as evaluate_checkpoints
from pipeline.results.read import read_artefact

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, make_olmo: Callable[..., OLMo]) -> Path:
    write_data(tmp_path / "data")
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    return tmp_path


def test_documents_too_short_are_skipped_and_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="pipeline"):
        results = measure(loss_differences, folder, "--max-documents", "2")
    assert "1 of 4 documents are shorter than 12 tokens and are skipped" in caplog.text
    rows = read_artefact(results, "loss_differences")  # of the first two that are long enough
    assert rows["document_id"].unique().tolist() == ["00000000000000aa", "00000000000000bb"]


def test_fewer_than_two_documents_are_refused(folder: Path) -> None:
    for flags, sentence in (
        (["--long-context-length", "14"], r"^1 evaluation document\(s\) of at least 14 tokens"),
        (["--max-documents", "1"], r"^1 evaluation document\(s\).* or a larger --max-documents$"),
    ):
        with pytest.raises(InputError, match=sentence):
            measure(loss_differences, folder, *flags)
        assert not (folder / "results").exists(), flags


def test_one_document_is_enough_if_no_other_is_looked_at(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = ["--max-documents", "1", "--results", str(folder / "one")]
    assert (
        len(read_artefact(measure(loss_differences, folder, *one, *LENGTH_LOSSES), "length_losses")) == 2 * 2
    )
    rules = ["--rules", "leave_one_out_divergence", "leave_one_out", "random", "--null-fraction", "1e-18"]
    rows = read_artefact(measure(influential_tokens, folder, *one, *rules), "sparse_context_losses")
    assert set(rows["rule"]) == {"leave_one_out_divergence"}
    assert "leave_one_out, random: not measured, as none of the 1 documents has a null" in caplog.text
    with pytest.raises(InputError, match="2 are needed"):
        measure(influential_tokens, folder, *one, *rules, "--intervention", "background")
    two = ["--max-documents", "2", "--results", str(folder / "two"), "--intervention", "background"]
    found, expected = (
        read_artefact(measure(influential_tokens, folder, *two, *more), "sparse_context_losses")
        for more in (rules, ["--results", str(folder / "three"), "--max-documents", "3", *rules])
    )
    # Of three documents the background is the one after the next; of two the other.
    found, expected = (
        rows.groupby("document_id")["background_loss"].apply(list) for rows in (found, expected)
    )
    first, second, *_ = expected.index
    assert found[second] == expected[second] and found[first] != expected[first]


def test_other_settings_are_refused_by_name(folder: Path) -> None:
    before = contents(measure(influential_tokens, folder, "--rules", "nearest"))
    for flags, change in (
        ("--short-context-length 3", "short_context_length was 4, now 3"),
        ("--documents-per-shard 2", "documents_per_shard was 1, now 2; num_shards was 3, now 2"),
        ("--rules random nearest", r"rules was \['nearest'\], now \['random', 'nearest'\]"),
    ):
        with pytest.raises(InputError, match=f"made with other settings: {change}; choose another --results"):
            measure(influential_tokens, folder, "--rules", "nearest", *flags.split())
        assert contents(folder / "results") == before, flags


def test_a_killed_run_of_three_documents_keeps_the_first(folder: Path) -> None:
    whole = contents(measure(influential_tokens, folder, "--results", str(folder / "whole")))
    flags = command_line(influential_tokens, folder, "--results", str(folder / "killed"))
    script = (
        "import os, signal, sys\n"
        "from pipeline import influential_tokens as stage\n"
        "from pipeline.results.write import StageOutput\n"
        "write = StageOutput.write_shard\n"
        "def write_and_be_killed(*of):\n    write(*of)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "StageOutput.write_shard = write_and_be_killed\n"
        "stage.main(stage.parser().parse_args(sys.argv[1:]))\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, *flags], cwd=ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (mark,) = (folder / "killed").rglob("*.done")
    written = mark.stat().st_mtime_ns
    results = measure(influential_tokens, folder, "--results", str(folder / "killed"))
    assert mark.stat().st_mtime_ns == written
    assert contents(results) == whole
    # What was begun with other shards goes on with these.
    for size in "2", "32":
        flags = ["--results", str(folder / size)]
        before = contents(measure(influential_tokens, folder, *flags, "--documents-per-shard", size))
        assert contents(measure(influential_tokens, folder, *flags)) == before


def test_other_weights_under_the_same_name_are_refused(folder: Path, make_olmo: Callable[..., OLMo]) -> None:
    measure(loss_differences, folder, *LENGTH_LOSSES)
    write_checkpoint(folder / "run", make_olmo(seed=2))
    with pytest.raises(
        InputError, match="length_losses of model 'run' made with other settings: inputs.checkpoint was"
    ):
        measure(loss_differences, folder, *LENGTH_LOSSES)


def test_complete_results_are_not_computed_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measure(influential_tokens, folder)
    before = {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("*")}

    def refuse_to_load(*arguments: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(evaluate_checkpoints, "load_causal_lm", refuse_to_load)
    with caplog.at_level("INFO", logger="pipeline"):
        measure(influential_tokens, folder)
    assert "of model 'run' is complete in" in caplog.text
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("*")}
