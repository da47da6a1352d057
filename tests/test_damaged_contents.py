"""Programs, walked with generic damages of each file that they read: one sentence.

It ends with exit code 2; or with 0 and the very output of whole files, where a program goes on without the
file or makes it anew. The files are found, not listed: what the stages write into a folder is damaged there,
file by file.
"""

import importlib
import json
import random
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from measured_documents import contents

from pipeline.cli import PROGRAMS, run_stage
from pipeline.text.tokenizer import train_bpe

Damage = Callable[[Path, bytes], object]
"""Given a file and what it holds."""
ROOT = Path(__file__).resolve().parents[1]
WITH_TIMES = (".jsonl",)
TEXT_FILES = (".json", ".jsonl", ".yaml", ".done")
PRETRAIN = [
    "model.d_model=16", "model.n_heads=2", "model.n_layers=1", "model.max_sequence_length=32",
    "train_context_length=16", "global_train_batch_tokens=64", "device_train_microbatch_tokens=64",
    "scheduler.t_warmup=1", "precision=fp32", "max_duration=4", "save_interval=2", "eval_interval=2",
    "eval_context_lengths=[8]", "peak_flops=1e11",
]  # fmt: skip
SYNTHETIC = [
    "model.width=16", "model.num_heads=1", "model.num_layers=1", "batch_size=8", "num_steps=4",
    "warm_up_steps=2", "save_interval=2", "eval_interval=2", "eval_num_examples=4",
]  # fmt: skip
LENGTHS = ["--long-context-length", "24", "--targets-per-chunk", "2", "--max-documents", "3",
           "--documents-per-shard", "2", "--max-chunks-per-document", "1"]  # fmt: skip
MEASURE = ["--data", "data", "--checkpoints", "run", "--results", "results", "--device", "cpu", *LENGTHS]
MODEL = "run/step4-unsharded"
STUDY = """
run: study
data: {source: [corpus.jsonl], tokenizer: "bpe:300"}
sizes: {tiny: {config: tiny.yaml, max_duration: 4, overrides: [save_interval=2, scheduler.t_warmup=2]}}
models:
  short: {train_context_length: 16, position_scheme: pose, pose_target_length: 64}
  long: {train_context_length: 64, seed: 1}
evaluation: {influential_models: [long], short_context_length: 8, long_context_length: 64,
  targets_per_chunk: 4, max_documents: 6, max_chunks_per_document: 1, rules: [nearest], k: [1, 4]}
"""


@dataclass(frozen=True)
class Walk:
    """A program's command line in the folder of whole files, and what of them it reads and writes."""

    words: list[str]
    reads: tuple[str, ...]
    """Files, and folders all of whose files are meant."""
    writes: tuple[str, ...] = ()
    made_first: bool = True
    """Whether the command makes whole files, for those that stand below it; else it only reads them."""
    without: str = ""
    """A folder that is left out, so that the program has something left to do."""


# Of the programs' readers, those that differ.
WALKS = {
    "tokenize_c4": Walk(
        ["--out", "data", "--source", "corpus.jsonl", "--tokenizer", "words.json", "--evaluation-fraction",
         "0.3"],
        ("corpus.jsonl", "words.json", "data"), ("data",),
    ),
    "study": Walk(
        ["study.yaml", "--dry-run", "--peak-flops", "1e11"], ("study.yaml", "tiny.yaml", "corpus.jsonl"),
        made_first=False,
    ),
    "pretrain": Walk(
        ["tiny.yaml", *PRETRAIN, "--data", "data", "--save-folder", "run"],
        ("tiny.yaml", "data", "run/config.yaml", "run/metrics.jsonl", "run/step2-unsharded"), ("run",),
        without="run/step4-unsharded",
    ),
    "loss_differences": Walk(
        [*MEASURE, "--short-context-length", "4"], ("data", MODEL, "results/loss_differences",
        "results/_stages/loss_differences"), ("results",),
    ),
    "query": Walk(
        ["--results", "results", "SELECT avg(loss_difference) FROM loss_differences"],
        ("results/loss_differences", "results/_stages/loss_differences"), made_first=False,
    ),
    "train_synthetic": Walk(
        ["small.yaml", *SYNTHETIC, "--task", "copy", "--positions", "predicted", "--save-folder", "task"],
        ("small.yaml", "task/config.yaml", "task/synthetic_training.parquet", "task/step2-unsharded"),
        ("task",), without="task/step4-unsharded",
    ),
}  # fmt: skip


def fast_or_slow(name: str) -> Any:
    """The name as a parameter of a test; most take minutes."""
    return name if name in ("tokenize_c4", "query") else pytest.param(name, marks=pytest.mark.slow)


def write_inputs(folder: Path) -> None:
    """What users bring: a text, a tokenizer, configurations and a study."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdeghilmnorstu", k=generator.randint(2, 7))) for _ in range(40)]
    texts = [" ".join(generator.choices(words, k=60)) for _ in range(20)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "words.json").write_text(train_bpe(texts, 300).to_json())
    shutil.copy(ROOT / "olmo_configs/tiny.yaml", folder)
    shutil.copy(ROOT / "olmo_configs/synthetic/small.yaml", folder)
    (folder / "study.yaml").write_text(STUDY)


def run(name: str) -> None:
    """Run a program on its words, in the working directory, as its command does."""
    program = importlib.import_module(next(full for full in PROGRAMS if full.endswith(f".{name}")))
    sys.argv = [f"{name}.py", *WALKS[name].words]
    run_stage(program.parser(), program.main)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of whole files, which grows with each program that is walked."""
    folder = tmp_path_factory.mktemp("whole")
    write_inputs(folder)
    return folder


@pytest.fixture
def whole(name: str, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of all the whole files that a program reads."""
    monkeypatch.chdir(inputs)
    monkeypatch.setattr(sys, "argv", [])
    for earlier in list(WALKS)[: list(WALKS).index(name) + 1]:
        mark = inputs / f".{earlier}-ran"
        if WALKS[earlier].made_first and not mark.exists():
            run(earlier)
            mark.touch()
    return inputs


def files_of(folder: Path, walk: Walk) -> list[str]:
    """The files that a program reads; the first of those that lie side by side and differ in a number."""
    found: dict[str, str] = {}
    for read in walk.reads:
        path = folder / read
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = str(file.relative_to(folder))
            if file.is_file() and not file.name.startswith("."):
                found.setdefault(re.sub(r"\d+", "0", name), name)
    assert found, walk.reads
    return list(found.values())


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def of_text(change: Callable[[str], str]) -> Damage:
    return lambda path, content: path.write_text(change(content.decode()))


DAMAGES: dict[str, Damage] = {
    "removed": lambda path, _: path.unlink(),
    "a folder": lambda path, _: (path.unlink(), path.mkdir()),
    "empty": lambda path, _: path.write_bytes(b""),
    "garbage": lambda path, _: path.write_bytes(b"\xff\xfe\x00" + random.Random(0).randbytes(200)),
    "cut in half": lambda path, content: path.write_bytes(content[: len(content) // 2]),
    "a bit flipped": lambda path, content: path.write_bytes(flipped(content)),
}
OF_TEXT: dict[str, Damage] = {
    "a list": of_text(lambda _: "[1, 2]\n"),
    "a word": of_text(lambda _: "word\n"),
    "words for numbers": of_text(lambda text: re.sub(r"(?<=[:\[] )-?\d[\d.e-]*", '"word"', text)),
    "lists for words": of_text(lambda text: re.sub(r'(?<=: )("[^"]*"|[\w-]+)', "[1]", text)),
}


def different(found: dict[str, bytes], expected: dict[str, bytes]) -> set[str]:
    """The files that are in one alone, or differ."""
    return {path for path in found.keys() | expected.keys() if found.get(path) != expected.get(path)}


def outcome(name: str, capsys: pytest.CaptureFixture[str]) -> str | dict[str, bytes]:
    """What a program wrote, standard output included; or what is wrong with how it ended, "" for nothing."""
    before = contents(Path())
    try:
        capsys.readouterr()
        run(name)
    except SystemExit as stopped:
        said = capsys.readouterr()
        errors = [line for line in said.err.splitlines() if ": error: " in line]
        is_right = stopped.code == 2 and len(errors) == 1 and said.err.endswith(f"{errors[0]}\n")
        touched = different(before, contents(Path()))
        if is_right and touched:
            return f"refused, and changed {touched}"
        return "" if is_right else f"code {stopped.code}: {said.err[-300:]}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told with its damage
        return f"{type(error).__name__}: {str(error)[:300]}"
    written = {
        path: content
        for path, content in contents(Path()).items()
        if path.startswith(WALKS[name].writes or "nothing") and not path.endswith(WITH_TIMES)
    }
    return {"standard output": capsys.readouterr().out.encode(), **written}


@pytest.mark.parametrize("name", [fast_or_slow(name) for name in WALKS])
def test_damaged_files_are_one_sentence(
    name: str,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    walk = WALKS[name]
    monkeypatch.setattr(sys, "argv", [])  # is put back
    monkeypatch.chdir(copied(whole, tmp_path / "whole", walk))
    expected = outcome(name, capsys)
    assert isinstance(expected, dict), expected
    faults = []
    for file in files_of(whole, walk):
        for kind, damage in (DAMAGES | (OF_TEXT if file.endswith(TEXT_FILES) else {})).items():
            here = copied(whole, tmp_path / "damaged", walk)
            damage(here / file, (whole / file).read_bytes())
            monkeypatch.chdir(here)
            found = outcome(name, capsys)
            if isinstance(found, dict):
                # A part of what users write may be a right input by itself.
                others = different(found, expected) - {file} if "/" in file else set()
                found = f"went on to another output: {others}" if others else ""
            if found:
                faults.append(f"{file} {kind}: {found}")
            shutil.rmtree(here)
    assert not faults, "\n".join(faults)


def copied(whole: Path, folder: Path, walk: Walk) -> Path:
    """A copy of the whole files that a command names, without the output that it makes from nothing."""
    folder.mkdir()
    for name in {Path(path).parts[0] for path in (*walk.words, *walk.reads, *walk.writes)}:
        if (whole / name).is_dir():
            shutil.copytree(whole / name, folder / name)
        elif (whole / name).is_file():
            shutil.copy(whole / name, folder)
    shutil.rmtree(folder / (walk.without or "nothing"), ignore_errors=True)
    for path in walk.writes:
        if not any(read.startswith(path) for read in walk.reads):
            shutil.rmtree(folder / path, ignore_errors=True)
    return folder
