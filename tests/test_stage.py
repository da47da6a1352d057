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

from pipeline import influential_tokens, length_losses, loss_differences
from pipeline.cli import InputError, is_out_of_memory, run_stage, stage_parser
from pipeline.results import files as parquet
from pipeline.results.files import allow_partial
from pipeline.results.read import read_artefact

STAGES = [loss_differences, influential_tokens, length_losses]


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
        # a run that has begun has drawn its progress bar; all else is the one sentence
        assert all("document" in line for line in before if line)
        assert sentence.startswith(f"{program}: error: ")
        return sentence

    return run


def truncate(folder: Path) -> None:
    path = folder / "run/step20-unsharded/model.pt"
    path.write_bytes(path.read_bytes()[:1000])


def remove_data(folder: Path) -> None:
    shutil.rmtree(folder / "data")


def remove_checkpoint(folder: Path) -> None:
    shutil.rmtree(folder / "run/step20-unsharded")


def replace_config(folder: Path) -> None:
    (folder / "run/step20-unsharded/config.yaml").write_text("model_type: llama\n")


def leave_all_as_it_is(folder: Path) -> None:
    pass


def copy_run_elsewhere(folder: Path) -> None:
    shutil.copytree(folder / "run", folder / "elsewhere" / "run")


def use_another_tokenizer(folder: Path) -> None:
    write_data(folder / "data", vocabulary_size=300)


BAD_INPUTS: list[tuple[str, Callable[[Path], None], list[str], str]] = [
    ("no data", remove_data, [], "no tokenized data in {folder}/data; run pipeline/tokenize_c4.py"),
    ("no checkpoint", remove_checkpoint, [], "no OLMo checkpoint at {folder}/run: expected config.yaml and"),
    ("truncated checkpoint", truncate, [], "model.pt is damaged: it is no archive of torch.save"),
    ("not OLMo", replace_config, [], "step20-unsharded/config.yaml is not an OLMo configuration"),
    (
        "another vocabulary", use_another_tokenizer, [],
        "the tokenizer of {folder}/data has 300 tokens (largest ID used: 47) and"
        " {folder}/run/step20-unsharded a vocabulary of 48: they do not belong together",
    ),
    (
        "two of one name", copy_run_elsewhere, ["--checkpoints", "{folder}/run", "{folder}/elsewhere/run"],
        "two of --checkpoints are named 'run'",
    ),
    (
        "no document long enough", leave_all_as_it_is, ["--long-context-length", "100"],
        "0 evaluation document(s) of at least 100 tokens",
    ),
    ("unknown device", leave_all_as_it_is, ["--device", "abacus"], "--device abacus cannot be used here"),
]  # fmt: skip


@pytest.mark.parametrize("stage", STAGES, ids=stage_name)
@pytest.mark.parametrize(("spoil", "flags", "sentence"), [case[1:] for case in BAD_INPUTS],
                         ids=[case[0] for case in BAD_INPUTS])  # fmt: skip
def test_bad_input_is_one_sentence(
    stage: ModuleType,
    spoil: Callable[[Path], None],
    flags: list[str],
    sentence: str,
    folder: Path,
    run_refused: Callable[..., str],
) -> None:
    spoil(folder)
    said = run_refused(stage, *(flag.format(folder=folder) for flag in flags))
    assert sentence.format(folder=folder) in said
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    ("stage", "flags", "sentence"),
    [
        (
            loss_differences, ["--short-context-length", "12"],
            "the short context (12 tokens) leaves no far context: it must be shorter than the long context"
            " before the first target, 12 - 3 = 9 tokens",
        ),
        (loss_differences, ["--short-context-length", "9"], "the short context (9 tokens) leaves no far"),
        (loss_differences, ["--targets-per-chunk", "12"], "12 - 12 = 0 tokens"),
        (
            influential_tokens, ["--k", "2", "6"],
            "--k 6 is more than the 5 far-context tokens of the first target",
        ),
        (
            influential_tokens, ["--rules", "random", "leave_one_ot"],
            "unknown rule 'leave_one_ot'; did you mean 'leave_one_out'?",
        ),
        (length_losses, ["--context-lengths", "10"], "--context-lengths 10: the first target of"),
    ],
)  # fmt: skip
def test_bad_settings_are_one_sentence(
    stage: ModuleType, flags: list[str], sentence: str, folder: Path, run_refused: Callable[..., str]
) -> None:
    assert sentence in run_refused(stage, *flags)
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--targets-per-chunk", "0"], "--targets-per-chunk: 0 is not a whole number of at least 1"),
        (["--recovery-fraction", "1.5"], "--recovery-fraction: 1.5 is not between 0 and 1"),
        (["--memory-budget", "0"], "--memory-budget: 0 is not a finite number above 0"),
        (["--shrot-context-length", "3"], "unrecognized arguments: --shrot-context-length 3"),
        (["--short", "3"], "unrecognized arguments: --short 3"),
    ],
)
def test_bad_flags_are_one_sentence_after_the_usage(
    flags: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        influential_tokens.parser().parse_args(command_line(influential_tokens, folder, *flags))
    assert stopped.value.code == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]


def test_results_of_another_configuration_stay_as_they_are(
    folder: Path, run_refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(measure(loss_differences, folder))
    capsys.readouterr()
    said = run_refused(loss_differences, "--short-context-length", "5")
    assert "made with other settings: short_context_length was 4, now 5; choose another --results" in said
    assert contents(folder / "results") == before


@pytest.mark.parametrize("stage", [loss_differences, influential_tokens], ids=stage_name)
def test_no_space_left(
    stage: ModuleType, folder: Path, run_refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--documents-per-shard", "1"]
    whole = contents(measure(stage, folder, "--results", str(folder / "whole"), *flags))
    write_table = pq.write_table

    def write_until_full(table: Any, path: Path, **options: Any) -> None:
        if path.name.startswith(".00001-of-"):
            path.write_bytes(b"half a file")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_table(table, path, **options)

    monkeypatch.setattr(parquet.pq, "write_table", write_until_full)
    said = run_refused(stage, *flags)
    assert "no space left on the device while writing" in said
    assert "free some and run the same command again" in said
    left = contents(folder / "results")
    assert left.items() < whole.items()  # and so no .part, and nothing that differs
    assert [path for path in left if path.endswith(".done")] == [
        f"_stages/{stage_name(stage)}/model=run/00000-of-00003.done"
    ]
    with pytest.raises(InputError, match=r"holds 1 of 3 shards of .* \(without 1-2\)"):
        read_artefact(folder / "results", stage_name(stage))
    allow_partial()
    documents = read_artefact(folder / "results", stage_name(stage))["document_id"]
    allow_partial(False)
    assert set(documents) == {"00000000000000aa"}
    monkeypatch.undo()
    measure(stage, folder, *flags)
    assert contents(folder / "results") == whole


NO_MEMORY = [
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        " to allocate 400000000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    RuntimeError("unable to mmap 2000 bytes from file <part-00000.npy>: Cannot allocate memory (12)"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    pa.ArrowMemoryError("malloc of size 400000000000000 failed"),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda error: type(error).__name__)
def test_no_memory_left_is_one_sentence_wherever_it_is(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def take_too_much(arguments: object) -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["program.py"])
    with pytest.raises(SystemExit) as stopped:
        run_stage(stage_parser(""), take_too_much)
    assert stopped.value.code == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "error: the memory does not suffice; end other programs" in sentence


def test_torch_says_what_is_told_as_no_memory() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(error.value)


def test_an_error_of_ours_is_no_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "argv", ["loss_differences.py", *command_line(loss_differences, folder)])
    with pytest.raises(OSError, match="Input/output"):
        run_stage(loss_differences.parser(), fail)


def test_an_interrupted_run_says_how_to_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["loss_differences.py", *command_line(loss_differences, folder)])
    with pytest.raises(SystemExit) as stopped:
        run_stage(loss_differences.parser(), interrupt)
    assert stopped.value.code == 130
    said = capsys.readouterr().err
    assert said == "loss_differences.py: interrupted; run the same command again to go on\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--shard-index", "0"], "--shard-index is called --task-index now"),
        (["--num-shards=4"], "--num-shards is called --num-tasks now"),
    ],
)
def test_a_flag_of_an_earlier_version_is_refused_by_its_new_name(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        loss_differences.parser().parse_args(words)
    assert stopped.value.code == 2
    assert sentence in capsys.readouterr().err
