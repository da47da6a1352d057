"""The pages: every link leads somewhere, every program takes the commands that are shown, and they run.

Commands are a page's indented code, read as a shell would, and code in its sentences. What is indented and
no command (Python, a drawing) stands between fences, with its language behind the first.

All commands run at small size in one folder, as a reader would have them: the demo's stages first, then page
by page. They are slow: `make test-all` runs them. Every word of a command is what a shell makes of it, in a
folder that holds what a reader brings along. The tables below replace some of these words: a model of two
layers for one of 160 million parameters, four training steps for a thousand. All else is as the page has it.
"""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from forked_stages import ROOT
from hugging_face_families import save_model
from measured_documents import json_lines
from tiny_task import TINY_TASK

from sparsity_length.cli import InputError, stage_of
from sparsity_length.studies import run as studies
from sparsity_length.studies.commands import Command
from sparsity_length.studies.file import load_study
from sparsity_length.text.tokenizer import train_bpe

_FILE = re.compile(r"(?<!\S)(?:pipeline|analysis|slurm|tests)/[\w/]+\.(?:py|sh)\b")
_PROGRAM = re.compile(r"(?<!\S)sparsity (\w+) ")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_A_COMMAND = re.compile(
    r"([A-Z][A-Z0-9_]*=\S+ )*"
    r"(python|make|sbatch|bash|torchrun|pip|hf|sparsity|source|cp|\. \.venv|slurm/submit_all)\S* \S"
)


def commands_of(page: Path, heading: str = "") -> list[str]:
    """All commands that a page or its section shows, in their order; those in sentences last.

    Each as it is typed: without comment, continued lines joined.
    """
    text = page.read_text(encoding="utf-8")
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = _FENCED.sub("", text).splitlines()
    shown = [*_read(line.removeprefix("    ") if line.startswith("    ") else "" for line in lines)]
    for code in re.findall(r"`([^`]*)`", "\n".join(line for line in lines if not line.startswith("    "))):
        typed = " ".join(code.split())
        if _A_COMMAND.match(typed) and not any(typed in command for command in shown):
            shown.append(typed)
    return shown


def _read(lines: Iterable[str]) -> Iterator[str]:
    command = ""
    for line in lines:
        command += re.sub(r"(?<!\S)#.*", "", line)
        try:
            shlex.split(command)
        except ValueError:  # a quote or a backslash lets it go on
            command += "\n"
            continue
        if command.strip():
            yield re.sub(r"\\\n *", "", command).strip()
        command = ""


OF_A_SHELL = (
    ". .venv/bin/activate",
    "sparsity --help",
    "cp slurm/",
    "source slurm/",
    "export ",
    "slurm/submit_all.sh --dry-run",
)
"""How the commands begin that a shell runs here as they stand."""
NOT_RUN = {
    r"…|<results>": "it stands for many commands",
    r"\b(hf download|pip install|python -m venv)\b": "there is no network",
    r"^(\S+=\S+ )?make (test|test-all|test-gpu|golden|mutants|lint|install|help)$": "it installs, or tests",
    r"tests/real_model\.py": "it downloads a model; tests/real uses it",
    r"TEXTS/|--checkpoints MODEL|runs/real/": "tests/analysis/test_interference.py runs them, small",
    r"MODEL=GEMMA|reach/gemma": "tests/analysis/test_reach.py runs them, small",
    r"runs/distance/": "tests/analysis/test_interference.py runs them, small",
    r"^(sbatch|slurm/submit_all\.sh(?! --dry-run))": "tests/slurm runs it, if there is a Slurm",
    r"^torchrun": "tests/test_pretrain.py runs it",
    r"studies/gpu\.yaml$": "it needs a GPU",
    r"\bload_path=": "tests/training/test_training_loop.py begins a run so",
    r"benchmarks/(leave_one_out|explain_\w+|screen|training)\.py": "tests/test_benchmarks_run.py runs them",
    r"benchmarks/peers\.py": "inseq and flashtrace are not installed",
    r"explain .*(--at|--chat) ": "tests/test_explain.py explains predictions and chats",
    r"^python -m sparsity_length\.figures": "tests/analysis: test_numbers_of_pages, test_synthetic_tasks",
    r"^python -m sparsity_length\.results": "tests/results and tests/analysis run it",
}
"""Commands that no test of pages runs, and why."""
_NOT_RUN = re.compile("|".join(NOT_RUN))

MODEL = "SmolLM2-135M"
WORDS = {
    "HuggingFaceTB/SmolLM2-135M": MODEL,
    "HuggingFaceTB/SmolLM2-135M-Instruct": MODEL,
    "MODEL": MODEL,
    "embedded": "english.jsonl",
    "bpe:2048": "bpe:320",
    "max_duration=360": "max_duration=4",
    "runs/c4/data": "runs/hand/data",
    "runs/beyond/texts.jsonl": "english.jsonl",
}
"""Words of pages, and what stands for them here."""
PARTS = {
    "/scratch/": "scratch/",
    "runs/demo/": "runs/hand/",
    "length-256": "length-128",
    "length-64": "length-192",
}
"""The same for parts of words, and of variables."""
VALUES = {
    "--max-documents": "5",
    "--num-examples": "4",
    "--largest-k": "4",
    "--long-context-length": "128",
    "--document-lengths": "128",
}
"""Flags of pages, and the value that they have here."""
_TINY = [
    "model.d_model=16",
    "model.n_heads=2",
    "model.n_layers=1",
    "model.mlp_ratio=2",
    "scheduler.t_warmup=2",
    "global_train_batch_tokens=512",
    "device_train_microbatch_tokens=512",
    "precision=fp32",
    "eval_context_lengths=null",
]
_FEW_TARGETS = ["--targets-per-chunk", "4"]
FURTHER_WORDS = {
    "pretrain": [*_TINY, "max_duration=4"],
    "influential_tokens": ["--k", "1", "4", *_FEW_TARGETS],
    "loss_differences": _FEW_TARGETS,
    "losses": _FEW_TARGETS,
}
"""Words that a program is told here beside those of the page."""


def _overrides(size: str, save_interval: int = 4, further: Sequence[str] = ()) -> list[str]:
    small = ",".join([*_TINY, f"save_interval={save_interval}", *further])
    return [f"sizes.{size}.overrides=[{small}]", f"sizes.{size}.max_duration=4"]


def _of_tasks(study: Path) -> list[str]:
    """Overrides of a study of synthetic tasks: one seed of each grid, tiny, and few test examples."""
    tasks = load_study(study).synthetic
    if tasks is None:
        return []
    tiny = [*TINY_TASK, "save_interval=3", "eval_interval=3"]
    overrides = []
    for name, grid in tasks.grids.items():
        of_grid = ",".join([*grid.overrides, *tiny])  # of two for one field the later wins
        overrides += [f"synthetic.grids.{name}.overrides=[{of_grid}]", f"synthetic.grids.{name}.seeds=[0]"]
    for name, test in tasks.evaluate_synthetic.items():
        number = 2 if test.get("dependencies") else 4
        overrides.append(f"synthetic.evaluate_synthetic.{name}.num_examples={number}")
    return overrides


STUDIES = {
    "demo": [
        "run=runs/study",
        "data.source=[english.jsonl]",
        "data.tokenizer=bpe:320",
        *_overrides("demo"),
        "evaluation.max_documents=5",
        "evaluation.loss_differences.max_documents=6",
    ],
    "c4": ["data.tokenizer=bpe:320", *_overrides("small"), "evaluation.max_documents=5"],
    "reference": [
        "data.tokenizer=bpe:320",
        "evaluation.max_documents=5",
        *(word for size in ("2m", "300k", "8m") for word in _overrides(size, save_interval=2)),
        # no notebooks: of a model of four steps too few targets gain for a slope by the answer's loss
        "further_evaluations.as_in_the_paper.stages=[loss_differences,influential_tokens,summary]",
        "further_evaluations.along_training.steps=[2]",
        "further_evaluations.along_training.max_documents=5",
        "further_evaluations.novels.max_documents=2",
        "further_evaluations.novels.max_chunks_per_document=1",
    ],
    "reach": [
        "data.source=[english.jsonl]",
        "evaluation.needles.max_documents=2",
        "evaluation.long_context_length=192",
        "evaluation.targets_per_chunk=20",
        "evaluation.near_context_length=100",
        "evaluation.placements=[own:91,own:91@600]",
        "evaluation.dtype=float32",
    ],
    "olmo_schemes": [
        "data.source=[english.jsonl]",
        "data.tokenizer=bpe:320",
        *_overrides("demo"),
        *(
            f"models.{name}-seed{seed}=null"
            for name in ("long", "rope", "pose", "alibi", "nope")
            for seed in (1, 2, 3)
        ),
        "evaluation.max_documents=5",
    ],
    "needed_context": ["data.source=[english.jsonl]", "evaluation.targets_per_chunk=4"],
    "synthetic": ["run=runs/synthetic_study"],
    "pretrained_beyond": [
        "data.source=[texts/a.jsonl]",
        "evaluation.short_context_length=8",
        "evaluation.long_context_length=96",
        "evaluation.targets_per_chunk=4",
        "evaluation.max_documents=2",
        "further_evaluations.stair.rope=stair:16:4",
        "further_evaluations.within.long_context_length=32",
    ],
}
"""Study files, and the fields that tests override beside `_of_tasks`; `run` where the page's other commands
have that folder."""


def texts_and_models(folder: Path) -> None:
    """Write what a reader brings along: documents, a letter, a model and its tokenizer, the repository."""
    for name, seed, number in (
        ("my_documents/a.jsonl", 0, 6),
        ("texts/a.jsonl", 5, 150),
        ("english.jsonl", 1, 150),
        *((f"scratch/reader/c4/en/c4-train.{part}.json.gz", part, 1) for part in range(64)),
        ("scratch/reader/c4/en/c4-validation.0.json.gz", 7, 9),
        ("FOLDER/c4-train.jsonl", 6, 30),
        ("FOLDER/c4-validation.jsonl", 7, 20),
        ("FOLDER/wikipedia-validation.jsonl", 10, 4),
        ("FOLDER/novels-train.jsonl", 8, 1),
        ("FOLDER/novels-validation.jsonl", 9, 2),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # Novels are measured at 1,024 tokens.
        text = json_lines(seed, number, 800 if "novels" in name else 160).encode()
        (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    (folder / "letter.txt").write_text(json.loads(json_lines(2, 1))["text"][:200])
    tokenizer = train_bpe([json_lines(3, 4), "magic number of Oslo is 48213"], 320).to_json()
    save_model(folder / MODEL, tokenizer, "gpt_neox", max_position_embeddings=320)
    for name in ("olmo_configs", "pipeline"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("slurm", "analysis/examples", "analysis/reference"):  # a command may write there
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("cluster.env"))
    (folder / ".venv").symlink_to(sys.prefix)
    example = folder / "slurm" / "cluster.env.example"
    example.write_text(_smaller(example.read_text()))


def without_make(command: str) -> str:
    """The command itself, or the study that `make` would run instead of it; of other targets nothing."""
    variables, typed, words = command.partition("make ")
    if not typed or not re.fullmatch(r"(\w+=\S+ )*", variables):
        return command
    said = subprocess.run(["make", "-n", *shlex.split(words)], cwd=ROOT, capture_output=True, text=True)
    studies = re.findall(r" pipeline/study\.py (.*)", said.stdout)
    return f"{variables}sparsity study {studies[0]}" if studies else ""


def run(folder: Path, command: str) -> None:
    """Run a command in a folder, at small size; pytest shows it if its program fails."""
    sys.stdout.write(f"{command}\n")
    if command.startswith(OF_A_SHELL):
        _bash(command, folder)
        return
    typed = _bash(f"printf '%s\\0' {without_make(command)}", folder).split("\0")[:-1]
    begin = typed.index("sparsity")
    name = typed[begin + 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NO_COLOR", "1")
        patch.setattr(studies, "_start", _run_here)
        for variable in typed[:begin]:
            variable_name, _, value = variable.partition("=")
            patch.setenv(variable_name, WORDS.get(value, _smaller(value)))
        try:
            stage_of(name)(_at_small_size(name, typed[begin + 2 :]))
        except SystemExit as end:  # a study ends so, well or not
            assert not end.code, f"exit code {end.code}"


def _run_here(command: Command, environment: object, log: Path) -> SimpleNamespace:
    """In place of a process that a study starts, and that would import everything anew."""
    log.touch()
    stage_of(command.stage)(command.arguments)
    return SimpleNamespace(poll=lambda: 0)


def _bash(code: str, folder: Path) -> str:
    programs = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    of_reader = os.environ | {"PATH": programs, "SCRATCH": "scratch/reader"}
    done = subprocess.run(["bash", "-c", code], cwd=folder, env=of_reader, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _at_small_size(name: str, words: list[str]) -> list[str]:
    small = [
        VALUES.get(flag, WORDS.get(word, _smaller(word)))
        for flag, word in zip(["", *words], words, strict=False)  # each with the word before it
    ]
    if name != "study":
        return [*small, *FURTHER_WORDS.get(name, [])]
    study = Path(small[0])
    return [*small, *STUDIES.get(study.stem, []), *_of_tasks(study)]


def _smaller(word: str) -> str:
    return re.sub("|".join(PARTS), lambda found: PARTS[found[0]], word)


PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted(ROOT.rglob("*.md"))
    if not any(part.startswith(".") or part == "runs" for part in path.relative_to(ROOT).parts)
}
# The others tell what was typed then, and not what to type now.
OF_COMMANDS = [name for name, path in PAGES.items() if path.name not in ("CHANGELOG.md", "LOG.md")]


def unfenced(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """What a browser of the repository calls the headings: their words in lower case, joined by hyphens."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", unfenced(page)).lower()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(name: str) -> None:
    page = PAGES[name]
    prose = re.sub(r"^    .*|`[^`\n]*`", "", unfenced(page), flags=re.MULTILINE)
    for target in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", prose):
        path, _, fragment = target.partition("#")
        led_to = (page.parent / path).resolve() if path else page
        assert led_to.exists() and (not fragment or fragment in anchors(led_to)), target


def complaint(command: str) -> str | None:
    """Why a command of a page is none, or why nobody would notice that it fails; None: all is well."""
    is_left_out = _NOT_RUN.search(command) or command.startswith(OF_A_SHELL)
    if not is_left_out and not _PROGRAM.search(without_make(command)):
        return "no test runs it; NOT_RUN says of which others that is right"
    if missing := [path for path in _FILE.findall(command) if not (ROOT / path).is_file()]:
        return f"there is no {missing[0]}"
    if (program := _PROGRAM.search(command)) and "…" not in command:
        words = shlex.split(re.sub(r"\$\w+", "1", command[program.end() :]))  # variables of the shell
        try:
            stage_of(program[1]).parse(words)
        except (InputError, SystemExit) as end:
            return str(end)
    return None


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_every_command_is_one_that_its_program_takes_and_a_test_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for command in commands_of(PAGES[name]):
        assert complaint(command) is None, f"{command}: {complaint(command)}"


def test_bad_commands_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Type `pip install x`, and `sbatch slurm/no.sh`:\n\n"
        "    A=b sparsity query --results r \"\n        SELECT '#1'\"   # the reader's own\n"
        "    make cake\n    sparsity query \\\n        --flag\n"
    )
    shown = {
        "A=b sparsity query --results r \"\n    SELECT '#1'\"": True,
        "make cake": False,
        "sparsity query --flag": False,
        "pip install x": True,
        "sbatch slurm/no.sh": False,
    }
    assert {command: complaint(command) is None for command in commands_of(page)} == shown


@pytest.fixture(scope="module")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that runs the commands of a page, each once; it returns the folder of all."""
    folder = tmp_path_factory.mktemp("pages")
    texts_and_models(folder)
    run_once = cache(partial(run, folder))

    def run_all(name: str, heading: str = "") -> Path:
        for command in commands_of(PAGES[name], heading):
            if not _NOT_RUN.search(command):
                run_once(command)
        return folder

    run_all("pipeline/README.md", "The stages by hand")
    return run_all


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_COMMANDS)
def test_the_commands_and_the_python_of_a_page_run(
    name: str, run_page: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_page(name)
    monkeypatch.chdir(folder)
    fenced = _FENCED.findall(PAGES[name].read_text(encoding="utf-8"))
    code = "\n".join(code for language, code in fenced if language == "python")
    code = code.replace("HuggingFaceTB/SmolLM2-135M", MODEL).replace("(8, 32, 128, 512)", "(4, 8, 16)")
    if name != "pipeline/RESULTS.md":  # tests/results/test_any_reader.py runs it
        exec(code.replace("The text …", (folder / "letter.txt").read_text()), {})


@pytest.mark.slow
def test_the_recipes_lead_to_what_they_say(run_page: Callable[..., Path]) -> None:
    folder = run_page("pipeline/RECIPES.md")
    mine = folder / "runs" / "mine"
    ranked = pd.read_csv(mine / "ranked.csv")
    assert [*ranked] == ["document_id", "targets", "gain_nats"]
    assert len(ranked) == 5 and ranked["gain_nats"].is_monotonic_decreasing
    assert MODEL in (mine / "explorer.html").read_text()
    assert (folder / "explained.html").is_file()
    assert list((mine / f"rules/sparse_context_losses/{MODEL}").glob("*.parquet"))
