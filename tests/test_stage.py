"""Bad input to a stage: one sentence on standard error, exit code 2, nothing left behind."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from measured_documents import command_line, contents, stage_name, write_checkpoint, write_data
from olmo.model import OLMo
from sparsity_length.programs import loss_differences


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
            stage.STAGE.main()
        said = capsys.readouterr()
        assert stopped.value.code == 2
        *_, sentence = said.err.splitlines()
        assert sentence.startswith(f"{program}: error: ")
        return sentence

    return run


STEP = "run/step20-unsharded"
BAD_INPUTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no data": (
        lambda folder: shutil.rmtree(folder / "data"),
        "",
        "no tokenized data in {folder}/data; run pipeline/tokenize_c4.py",
    ),
    "no checkpoint": (
        lambda folder: shutil.rmtree(folder / STEP),
        "",
        "no model at {folder}/run: name a folder with a Hugging Face model's",
    ),
    "damaged checkpoint": (
        lambda folder: (folder / STEP / "model.pt").write_bytes(b"PK\x03\x04"),
        "",
        "model.pt is damaged, or was not written by torch.save",
    ),
    "not OLMo": (
        lambda folder: (folder / STEP / "config.yaml").write_text("model_type: llama\n"),
        "",
        "step20-unsharded/config.yaml is not an OLMo configuration",
    ),
    "two of one name": (
        lambda folder: shutil.copytree(folder / "run", folder / "elsewhere" / "run"),
        "--checkpoints {folder}/run {folder}/elsewhere/run",
        "two models are named alike, of run, run",
    ),
    "no distant context": (lambda _: None, "--short-context-length 12", "leaves no distant context"),
    "a longer window": (lambda _: None, "--context-lengths 10", "--context-lengths 10: the first target"),
    "unknown device": (lambda _: None, "--device abacus", "--device abacus cannot be used here"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_is_one_sentence(case: str, folder: Path, run_refused: Callable[..., str]) -> None:
    spoil, flags, sentence = BAD_INPUTS[case]
    spoil(folder)
    said = run_refused(loss_differences, *flags.format(folder=folder).split())
    assert sentence.format(folder=folder) in said
    assert contents(folder / "results") == {}
