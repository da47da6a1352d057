"""Programs as they are typed: manuals, bad input, SQL over results, outputs, standard streams."""

import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from measured_documents import Typed, command_line, contents
from sparsity_length.programs import explain, loss_differences, query
from written_results import write_length_losses

from sparsity_length.cli import ALIASES, PROGRAMS, InputError, main, stage_of

NAMES = [module.rpartition(".")[2] for modules in PROGRAMS.values() for module in modules]


@pytest.mark.parametrize("name", [*NAMES, *ALIASES])
def test_a_manual_says_of_each_flag_one_default_or_that_it_is_required(name: str, typed: Typed) -> None:
    code, said, _ = typed(main, "sparsity", name.replace("_", "-"), "--help")
    assert code == 0 and said.startswith(f"usage: sparsity {name} ")
    flags = said.rpartition("options:\n")[2]
    usage = said.partition("\n\n")[0]
    for text in re.split(r"\n  (?=-)", flags):
        assert text.count("(default") + text.count("(required") <= 1, text
        flag = re.match(r"--[\w-]+", text)
        optional = flag is None or re.search(rf"[\[|(] ?{flag[0]}\b", usage)
        assert optional or "(required" in " ".join(text.split()), text
    assert not re.search(r"\(default: *(\(|\[|None|\))", flags)


def test_flags_are_read_before_a_library_that_takes_seconds_to_import() -> None:
    code = (
        "import sys; from sparsity_length.cli import PROGRAMS, stage_of\n"
        f"for name in {NAMES}: stage_of(name).parser()\n"
        "print(*{'torch', 'transformers', 'datasets', 'olmo'} & {*sys.modules})"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "\n"


def test_the_list_of_programs_has_each_with_what_it_does(typed: Typed) -> None:
    _, said, _ = typed(main, "sparsity", "--help")
    does = dict(re.findall(r"^  (?:\w+, )*(\w+)  +(\S.*)$", said, re.MULTILINE))
    assert list(does) == NAMES
    assert all(stage_of(name).manual.startswith(line) for name, line in does.items())
    code, _, error = typed(main, "sparsity", "explian")
    assert code == 2 and "did you mean 'explain'?" in error


STEP = "run/step20-unsharded"


@pytest.mark.parametrize(
    ("spoil", "flags", "sentence"),
    [
        (
            lambda folder: shutil.rmtree(folder / "data"),
            "",
            "no tokenized data in {folder}/data; run sparsity tokenize",
        ),
        (
            lambda folder: shutil.rmtree(folder / STEP),
            "",
            "no model at {folder}/run: name a folder with a Hugging Face model's",
        ),
        (
            lambda folder: (folder / STEP / "model.pt").write_bytes(b"PK\x03\x04"),
            "",
            "model.pt is damaged, or was not written by torch.save",
        ),
        (
            lambda folder: (folder / STEP / "config.yaml").write_text("model_type: llama\n"),
            "",
            "step20-unsharded/config.yaml is not an OLMo configuration",
        ),
        (
            lambda folder: shutil.copytree(folder / "run", folder / "elsewhere" / "run"),
            "--checkpoints {folder}/run {folder}/elsewhere/run",
            "two models are named alike, of run, run",
        ),
        # Before the first target stand nine.
        (lambda _: None, "--short-context-length 9", "no distant context is left"),
        (lambda _: None, "--short-context-length 10", "no distant context is left"),
        (lambda _: None, "--context-lengths 10", "--context-lengths 10: the first target"),
        (lambda _: None, "--device abacus", "--device abacus cannot be used here"),
    ],
)
def test_bad_input_is_one_sentence(
    spoil: Callable[[Path], object], flags: str, sentence: str, folder: Path, typed: Typed
) -> None:
    spoil(folder)
    words = command_line(loss_differences, folder, *flags.format(folder=folder).split())
    code, _, said = typed(loss_differences.STAGE.main, "stage.py", *words)
    *_, last = said.splitlines()
    assert code == 2 and last.startswith("stage.py: error: ") and sentence.format(folder=folder) in last
    assert contents(folder / "results") == {}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    # The folder's name holds what a glob and SQL would each take for their own.
    results = tmp_path / "it's [a] folder"
    write_length_losses(results, "a", [1.0, 3.0])
    write_length_losses(results, "2", [5.0])
    return results


@pytest.mark.parametrize(
    ("name", "of_a", "of_b", "is_told"),
    [
        ("targets_per_chunk", 16, 32, True),
        ("dtype", "float32", "bfloat16", True),
        ("ablation", "mask", "swap", True),
        ("seed", 0, 1, True),
        ("context_lengths", [8], [8, 16], False),
        ("rules", ["random"], ["recency"], False),
        ("k", [1], [1, 2], False),
        ("documents_per_shard", 1, 2, False),
    ],
)
def test_models_measured_in_two_ways_are_warned_of(
    name: str, of_a: Any, of_b: Any, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_length_losses(tmp_path, "a", [1.0], **{name: of_a})
    write_length_losses(tmp_path, "b", [1.0], **{name: of_b})
    sql = "SELECT count(*) FROM length_losses"
    assert query.select(query.connect(tmp_path, sql), sql).fetchall() == [(2,)]
    assert (f"measured in two ways: {name} was" in caplog.text) == is_told


@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_rows_go_to_standard_output(out: str, results: Path, typed: Typed) -> None:
    sql = "SELECT model, mean_loss FROM length_losses WHERE mean_loss > 2 ORDER BY model"
    _, said, _ = typed(query.STAGE.main, "query.py", "--results", results, "--out", out, sql)
    assert said.splitlines() == ["model,mean_loss", "2,5.0", "a,3.0"]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (["SELECT 1 FROM nothing"], "nothing does not exist"),
        (["SELEC 1"], "syntax error"),
        (["COPY length_losses TO 'a.csv'"], "not a single SELECT"),
        (["EXPLAIN ANALYZE COPY length_losses TO 'a.csv'"], "not a single SELECT"),
        (["SELECT 1", "--results", "unmarked"], "unmarked holds no results"),
        (["--out", "-"], "not a folder to export to"),
        (["SELECT 1", "--out", "a.json"], "neither .csv nor .parquet"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(
    asked: list[str],
    sentence: str,
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: Typed,
) -> None:
    shutil.copytree(results / "length_losses", tmp_path / "unmarked" / "length_losses")
    monkeypatch.chdir(tmp_path)
    code, said, error = typed(query.STAGE.main, "query.py", "--results", results, *asked)
    assert (code, said, error.count("\n")) == (2, "", 1)
    assert error.startswith("query.py: error: ") and sentence in error
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("query", "--results {folder} --out {folder}"),
        ("query", "SELECT --results {folder} --out {folder}/{shard}"),
        ("query", "SELECT --results {folder} --out {folder}/link/{shard}"),
        (
            "tokenize_c4",
            "--source {folder}/texts.jsonl {folder}/manifest.json --tokenizer bpe:300 --out {folder}",
        ),
        (
            "tokenize_c4",
            "--source {folder}/texts.jsonl {folder}/evaluation_documents/00000-of-00001.parquet"
            " --tokenizer olmo --num-tasks 2 --task-index 0 --out {folder}",
        ),
        ("explorer", "{folder} --out {folder}/{shard}"),
        ("choose_texts", "--source web={folder}/*.jsonl --out {folder}/texts.jsonl"),
    ],
)
def test_an_output_onto_an_input_is_refused(name: str, words: str, tmp_path: Path) -> None:
    """Results, texts and tables, each under a name that some program writes."""
    shard = "length_losses/a/00000-of-00001.parquet"
    write_length_losses(tmp_path, "a", [1.0])
    for file in ("texts.jsonl", "manifest.json"):
        (tmp_path / file).write_text('{"text": "a text", "url": "u"}')
    shutil.copytree((tmp_path / shard).parent, tmp_path / "evaluation_documents")
    (tmp_path / "link").symlink_to(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(InputError, match="is an input, which the output would replace"):
        stage_of(name)(words.format(folder=tmp_path, shard=shard).split())
    assert contents(tmp_path) == before


def test_another_system_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.platform = 'win32'; import sparsity_length"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stderr.splitlines()[-1].endswith("on Windows, under WSL")


@pytest.mark.parametrize(
    ("command", "code", "output", "error"),
    [
        ("{sparsity} query --results {folder} 'SELECT 1' >&-", 2, "", "standard output is closed"),
        (
            "{sparsity} query --results {folder} 'SELECT range FROM range(200)' | true; exit $PIPESTATUS",
            141,
            "",
            "",
        ),
        ("{sparsity} query --results {folder} \"SELECT '中文', length('中文') + 40\"", 0, " 42 ", ""),
        ("{sparsity} query --results {folder} 'SELECT 7' 2>&-", 0, "7", ""),
    ],
)
def test_streams(command: str, code: int, output: str, error: str, tmp_path: Path) -> None:
    write_length_losses(tmp_path, "a", [1.0])
    ended = subprocess.run(
        ["bash", "-c", command.format(sparsity=f"{sys.executable} -m sparsity_length", folder=tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    )
    assert ended.returncode == code and output in ended.stdout and "Traceback" not in ended.stderr
    assert error in ended.stderr and len(ended.stderr.splitlines()) == (1 if error else 0)


@pytest.mark.parametrize(
    ("stdin", "sentence", "told"),
    [
        (
            SimpleNamespace(isatty=lambda: True, buffer=io.BytesIO(b" ")),
            "the text is empty",
            "reading standard input: end the text with Ctrl-D",
        ),
        (None, "there is no text: standard input is closed", ""),  # as Python has it if it is
    ],
)
def test_a_terminal_is_told_that_it_is_read_and_closed_input_is_refused(
    stdin: object, sentence: str, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(InputError, match=sentence):
        explain.STAGE(["--model", "none"])
    assert told in caplog.text and bool(told) == bool(caplog.text)
