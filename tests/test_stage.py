"""Manuals; and bad input to a stage: one sentence on standard error, exit code 2, nothing left behind."""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from measured_documents import command_line, contents, stage_name, write_checkpoint, write_data
from olmo.model import OLMo
from sparsity_length.programs import loss_differences

from sparsity_length.cli import ALIASES, PROGRAMS, main, stage_of

NAMES = [module.rpartition(".")[2] for modules in PROGRAMS.values() for module in modules]


@pytest.mark.parametrize("name", [*NAMES, *ALIASES])
def test_a_manual_says_of_each_flag_one_default_or_that_it_is_required(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sparsity", name.replace("_", "-"), "--help"])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr().out
    assert stopped.value.code == 0 and said.startswith(f"usage: sparsity {name} ")
    _, _, flags = said.rpartition("options:\n")
    usage, _, _ = said.partition("\n\n")
    for text in re.split(r"\n  (?=-)", flags):
        assert text.count("(default") + text.count("(required") <= 1, text
        flag = re.match(r"--[\w-]+", text)
        optional = flag is None or re.search(rf"[\[|(] ?{flag[0]}\b", usage)
        assert optional or "(required" in " ".join(text.split()), text
    assert not re.search(r"\(default: *(\(|\[|None|\))", flags)


def test_the_list_of_programs_has_each_with_what_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sparsity", "--help"])
    with pytest.raises(SystemExit):
        main()
    does = dict(re.findall(r"^  (?:\w+, )*(\w+)  +(\S.*)$", capsys.readouterr().out, re.MULTILINE))
    assert list(does) == NAMES
    assert all(stage_of(name).manual.startswith(line) for name, line in does.items())
    monkeypatch.setattr(sys, "argv", ["sparsity", "explian"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2 and "did you mean 'explain'?" in capsys.readouterr().err


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
        "no tokenized data in {folder}/data; run sparsity tokenize",
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
