"""What the measuring stages share: documents taken or skipped, folders resumed or refused."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from measured_documents import LENGTH_LOSSES, command_line, contents, measure, write_checkpoint, write_data
from olmo.model import OLMo
from sparsity_length.programs import influential_tokens, loss_differences

from sparsity_length.cli import InputError
from sparsity_length.measuring import stage as evaluate_checkpoints
from sparsity_length.results.read import Results

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, make_olmo: Callable[..., OLMo]) -> Path:
    write_data(tmp_path / "data")
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    return tmp_path


def test_the_first_documents_that_are_long_enough_are_measured(folder: Path) -> None:
    results = measure(loss_differences, folder, "--max-documents", "2")
    rows = Results(results).frame("loss_differences")  # of the first two that are long enough
    assert rows["document_id"].unique().tolist() == ["00000000000000aa", "00000000000000bb"]


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


def test_other_weights_under_the_same_name_are_refused(folder: Path, make_olmo: Callable[..., OLMo]) -> None:
    measure(loss_differences, folder, *LENGTH_LOSSES)
    write_checkpoint(folder / "run", make_olmo(seed=2))
    with pytest.raises(
        InputError, match="length_losses of model 'run' made with other settings: inputs.checkpoint was"
    ):
        measure(loss_differences, folder, *LENGTH_LOSSES)


def test_complete_results_are_not_computed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(influential_tokens, folder)
    before = {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("*")}

    monkeypatch.setattr(evaluate_checkpoints, "GivenModel", None)  # no model is loaded
    measure(influential_tokens, folder)
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("*")}
