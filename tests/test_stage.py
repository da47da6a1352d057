"""Bad input to a stage: one sentence on standard error, exit code 2, nothing left behind."""

import errno
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from measured_documents import command_line, contents, measure, stage_name, write_checkpoint, write_data
from olmo.model import OLMo

from pipeline import influential_tokens, loss_differences
from pipeline.cli import InputError, is_out_of_memory, run_stage, stage_parser
from pipeline.results.read import read_artefact


@pytest.fixture
def folder(tmp_path: Path, make_olmo: Callable[..., OLMo]) -> Path:
    write_data(tmp_path / "data")
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    return tmp_path


@pytest.fixture
def run_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run a stage as its command does, in `folder`; the last line that it says on exiting with code 2."""

    def run(stage: ModuleType, *flags: str) -> str:
        program = f"{stage_name(stage)}.py"
        monkeypatch.setattr(sys, "argv", [program, *command_line(stage, folder, *flags)])
        with pytest.raises(SystemExit) as stopped:
            run_stage(stage.parser(), stage.main)
        said = capsys.readouterr()
        assert stopped.value.code == 2
        assert said.out == ""
        assert said.err.endswith("\n")
        *before, sentence = said.err.splitlines()
        # a run that has begun has drawn its progress bar, and these data come without their tokenizer
        assert all("document" in line or "cannot be told" in line for line in before if line)
        assert sentence.startswith(f"{program}: error: ")
        return sentence

    return run


STEP = "run/step20-unsharded"
BAD_INPUTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no data": (
        lambda folder: shutil.rmtree(folder / "data"), "",
        "no tokenized data in {folder}/data; run pipeline/tokenize_c4.py",
    ),
    "no checkpoint": (
        lambda folder: shutil.rmtree(folder / STEP), "",
        "no model at {folder}/run: expected a Hugging Face model's",
    ),
    "damaged checkpoint": (
        lambda folder: (folder / STEP / "model.pt").write_bytes(b"PK\x03\x04"), "",
        "model.pt is damaged, or was not written by torch.save",
    ),
    "not OLMo": (
        lambda folder: (folder / STEP / "config.yaml").write_text("model_type: llama\n"), "",
        "step20-unsharded/config.yaml is not an OLMo configuration",
    ),
    "two of one name": (
        lambda folder: shutil.copytree(folder / "run", folder / "elsewhere" / "run"),
        "--checkpoints {folder}/run {folder}/elsewhere/run", "two of --checkpoints are named 'run'",
    ),
    "unknown device": (lambda _: None, "--device abacus", "--device abacus cannot be used here"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_is_one_sentence(case: str, folder: Path, run_refused: Callable[..., str]) -> None:
    spoil, flags, sentence = BAD_INPUTS[case]
    spoil(folder)
    said = run_refused(loss_differences, *flags.format(folder=folder).split())
    assert sentence.format(folder=folder) in said
    assert not (folder / "results").exists()


def test_bad_settings_are_one_sentence(folder: Path, run_refused: Callable[..., str]) -> None:
    for stage, flags, sentence in (
        (
            loss_differences, "--short-context-length 12",
            "the short context (12 tokens) leaves no far context: it must be shorter than the long context"
            " before the first target, 12 - 3 = 9 tokens",
        ),
        (loss_differences, "--targets-per-chunk 12", "12 - 12 = 0 tokens"),
        (influential_tokens, "--k 2 6", "--k 6 is more than the 5 far-context tokens of the first target"),
        (influential_tokens, "--rules leave_one_ot", "'leave_one_ot'; did you mean 'leave_one_out'?"),
        (loss_differences, "--context-lengths 10", "--context-lengths 10: the first target of"),
    ):  # fmt: skip
        assert sentence in run_refused(stage, *flags.split()), flags
        assert not (folder / "results").exists(), flags


def test_no_space_left(
    folder: Path, run_refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = influential_tokens
    flags = ["--documents-per-shard", "1"]
    whole = contents(measure(stage, folder, "--results", str(folder / "whole"), *flags))
    write_table = pq.write_table

    def write_until_full(table: Any, path: Path, **options: Any) -> None:
        if path.name.startswith(".00001-of-"):
            path.write_bytes(b"half a file")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_table(table, path, **options)

    monkeypatch.setattr(pq, "write_table", write_until_full)
    said = run_refused(stage, *flags)
    assert "error: No space left on device: " in said
    left = contents(folder / "results")
    assert left.items() < whole.items()  # and so no .part, and nothing that differs
    done = [path for path in left if path.endswith(".done")]
    assert done == [f"_stages/{stage_name(stage)}/model=run/00000-of-00003.done"]
    documents = read_artefact(folder / "results", stage_name(stage))["document_id"]
    assert set(documents) == {"00000000000000aa"}
    monkeypatch.undo()
    measure(stage, folder, *flags)
    assert contents(folder / "results") == whole


def test_what_the_system_refuses_is_one_sentence_wherever_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_memory = (
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("unable to mmap 2000 bytes from file <part-00000.npy>: Cannot allocate memory (12)"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        pa.ArrowMemoryError("malloc of size 400000000000000 failed"),
    )
    monkeypatch.setattr(sys, "argv", ["program.py"])
    for error, sentence in (
        *((error, "the memory does not suffice") for error in no_memory),
        (OSError(errno.ENOSPC, "No space left", "a"), "error: No space left: a"),
        (OSError("no number"), "error: no number"),
        (InputError("bad\n input"), "bad input"),
        (RuntimeError("a mistake of ours"), None),
    ):

        def fail(arguments: object, error: Exception = error) -> None:
            raise error

        with pytest.raises(SystemExit if sentence else RuntimeError) as stopped:
            run_stage(stage_parser(""), fail)
        if isinstance(stopped.value, SystemExit):
            (line,) = capsys.readouterr().err.splitlines()
            assert (stopped.value.code, str(sentence) in line) == (2, True), line
    with pytest.raises(RuntimeError) as unallocated:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(unallocated.value)
