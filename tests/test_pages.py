"""The pages: every link leads somewhere, every program takes the commands that are shown, and they run.

Commands are a page's indented code, read as a shell would, and code in its sentences. What is indented and
no command (Python, a drawing) stands between fences, with its language behind the first.

All commands run at small size in one folder, as a reader would have them: the demo's stages first, then page
by page. They are slow: `make test-all` runs them. Every word of a command is what a shell makes of it, in a
folder that holds what a reader brings along. The tables below replace some of these words: a model of two
layers for one of 160 million parameters, four training steps for a thousand. All else is as the page has it.
"""

import gzip
import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import forked_stages
import pytest
from hugging_face_families import save_model
from measured_documents import json_lines
from tiny_task import TINY_TASK

from sparsity_length.cli import MODULES, InputError, stage_of
from sparsity_length.text.tokenizer import train_bpe

ROOT = Path(__file__).resolve().parents[1]
UNMARKED = ("CHANGELOG.md", "LOG.md")
"""Pages that tell what was typed then, and not what to type now."""
FOLDERS = {"programs": "pipeline", "analysis": "analysis"}
"""Package of programs, below sparsity_length -> its folder."""
_PROGRAM = re.compile(r"(?<!\S)((?:pipeline|analysis|slurm|tests)/[\w/]+\.(?:py|sh))\b")
_INSTALLED = re.compile(r"(?<!\S)sparsity (\w+)(?= )")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = r"(?<!\S)\#[^\n]*"
_LINE = re.compile(
    rf"""(?:{_COMMENT}|\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^\\\n"'])++""", re.DOTALL | re.VERBOSE
)  # what a shell takes as one line: a backslash or a quote lets it go on
_PART = re.compile(rf"""({_COMMENT})|\\\n[ ]*|\\.|"(?:\\.|[^"\\])*"|'[^']*'|.""", re.DOTALL | re.VERBOSE)
_IN_A_SENTENCE = re.compile(r"`([^`]*)`")
_A_COMMAND = re.compile(
    r"([A-Z][A-Z0-9_]*=\S+ )*"
    r"(python|make|sbatch|bash|torchrun|pip|hf|sparsity|source|cp|\. \.venv|slurm/submit_all)\S* \S"
)


@dataclass(frozen=True)
class Shown:
    """One command of a page."""

    text: str
    """As it is typed: without comment, continued lines joined."""

    @property
    def program(self) -> str | None:
        """The file of this repository that it runs, below the root; None if it names none."""
        if found := _INSTALLED.search(self.text):
            module = MODULES.get(found[1], f"sparsity_length.programs.{found[1]}")
            _, package, *names = module.split(".")
            return "/".join([FOLDERS[package], *names]) + ".py"
        found = _PROGRAM.search(self.text)
        return found and found[1]

    @property
    def arguments(self) -> list[str]:
        """The words after the program's name."""
        found = _INSTALLED.search(self.text) or _PROGRAM.search(self.text)
        assert found is not None
        return shlex.split(self.text[found.end() :])


def python_of(page: Path) -> list[str]:
    """The Python code that a page shows."""
    return [code for language, code in _FENCED.findall(page.read_text("utf-8")) if language == "python"]


def commands_of(page: Path, heading: str | None = None) -> list[Shown]:
    """All commands that a page or its section shows, in their order; those in sentences last."""
    lines = _unfenced(page, heading).splitlines()
    code = "\n".join(line.removeprefix("    ") if line.startswith("    ") else "" for line in lines)
    shown = list(_read(code))
    prose = "\n".join(line for line in lines if not line.startswith("    "))
    for found in _IN_A_SENTENCE.finditer(prose):
        text = " ".join(found[1].split())
        if _A_COMMAND.match(text) and not any(text in one.text for one in shown):
            shown.append(Shown(text))
    return shown


def _unfenced(page: Path, heading: str | None) -> str:
    text = page.read_text(encoding="utf-8")
    if heading is not None:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return _FENCED.sub("", text)


def _read(code: str) -> Iterator[Shown]:
    for line in _LINE.findall(code):
        text = _PART.sub(lambda part: "" if part[1] or part[0].startswith("\\\n") else part[0], line).strip()
        if text:
            yield Shown(text)


OF_A_SHELL = (
    ". .venv/bin/activate",
    "sparsity --help",
    "cp slurm/",
    "source slurm/",
    "export ",
    "slurm/submit_all.sh --dry-run",
)
"""How the commands begin that a shell runs here as they stand."""
AT_LENGTH = (
    "sparsity run_notebooks",
    "tests/benchmarks/training.py",
    "runs/reach/",
    "runs/olmo_schemes/",
)
"""What makes a command a matter of minutes even at small size, or need one that is. So does a whole study."""
BENCHMARKS = ROOT / "tests" / "benchmarks"

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
    r"benchmarks/(leave_one_out|explain_\w+|screen)\.py": "tests/test_benchmarks_run.py runs them, small",
    r"benchmarks/peers\.py": "it installs three environments",
    r"explain .*(--at|--chat) ": "tests/test_explain.py explains predictions and chats",
    r"^python -m sparsity_length\.figures": "tests/analysis: test_numbers_of_pages, test_synthetic_tasks",
    r"^python -m sparsity_length\.results": "tests/results and tests/analysis run it",
}
"""Commands that no test of pages runs, and why."""
PYTHON_ELSEWHERE = ("pipeline/RESULTS.md",)
"""Pages whose Python code another test runs: tests/results/test_any_reader.py."""

MODEL = "SmolLM2-135M"
WORDS = {
    "HuggingFaceTB/SmolLM2-135M": MODEL,
    "HuggingFaceTB/SmolLM2-135M-Instruct": MODEL,
    "MODEL": MODEL,
    "embedded": "english.jsonl",
    "bpe:2048": "bpe:320",
    "max_duration=360": "max_duration=4",
    "runs/c4/data": "runs/demo/data",
}
"""Words of pages, and what stands for them here."""
PARTS = {"/scratch/": "scratch/", "length-256": "length-128", "length-64": "length-192"}
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
_TINY_TASK = [*TINY_TASK, "save_interval=3", "eval_interval=3"]
_FEW_TARGETS = ["--targets-per-chunk", "4"]
FURTHER_WORDS = {
    "pipeline/pretrain.py": [*_TINY, "max_duration=4"],
    "pipeline/train_synthetic.py": _TINY_TASK,
    "pipeline/influential_tokens.py": ["--k", "1", "4", *_FEW_TARGETS],
    "pipeline/loss_differences.py": _FEW_TARGETS,
    "pipeline/length_interference.py": _FEW_TARGETS,
    "tests/benchmarks/training.py": ["--quick", "--precisions", "fp32"],  # AVX2 emulates bfloat16, slowly
}
"""Words that a program is told here beside those of the page."""


def _overrides(size: str, save_interval: int = 4, further: Sequence[str] = ()) -> list[str]:
    small = ",".join([*_TINY, f"save_interval={save_interval}", *further])
    return [f"sizes.{size}.overrides=[{small}]", f"sizes.{size}.max_duration=4"]


def _of_tasks(found: Sequence[str], tested: Sequence[str], **grids: str) -> list[str]:
    """Overrides of a study of synthetic tasks: what it asks, and its grids with what else these override."""
    small = ",".join(_TINY_TASK)
    return [
        *(f"synthetic.grids.{grid}.overrides=[{small}{others}]" for grid, others in grids.items()),
        *(f"synthetic.grids.{grid}.seeds=[0]" for grid in grids),
        *(f"synthetic.evaluate_synthetic.{task}.num_examples=4" for task in tested),
        *(f"synthetic.evaluate_synthetic.found_{task}.num_examples=2" for task in found),
    ]


_OF_CUES = ("plain", "coupled", "pose")
_FOUND = ["variable_assignment", "sparse_parity"]
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
    "synthetic_rotated": _of_tasks(
        [],
        ["copy", "variable_assignment", "addition_padded"],
        copy=",model.rotary_fraction=1.0",
        variable_assignment="",
        addition_padded="",
    ),
    "synthetic_parity": _of_tasks(
        [],
        [f"sparse_{name}" for name in ("parity", "or", "majority", "last", "lookup")],
        **dict.fromkeys(("parity", "or", "others"), ",num_position_ids=256,smallest_size=18,largest_size=18"),
    ),
    "parity_learnt": _of_tasks(
        [],
        ["sparse_parity"],
        parity=",num_position_ids=256,smallest_size=18,largest_size=18,stop_at_accuracy=0.995",
    ),
    "synthetic_schemes": [
        *_of_tasks(
            [],
            ["sparse_first", "sparse_last", "sparse_majority", "copy", "parity_scratchpad"],
            others=",smallest_size=18,largest_size=18,num_position_ids=512",
            sparse=",smallest_size=18,largest_size=18,num_position_ids=512,model.num_keys=8",
            **dict.fromkeys(("copy", "scratchpad"), ",largest_size=5,num_position_ids=256"),
        ),
        *(f"synthetic.grids.{grid}=null" for grid in ("far_and_near", "many", "assignment")),
        "synthetic.evaluate_synthetic.variable_assignment=null",
    ],
    "synthetic_schemes_36": _of_tasks(
        [],
        ["sparse_first", "sparse_last"],
        far_and_near=",smallest_size=36,largest_size=36,num_position_ids=512",
    ),
    "synthetic_beyond_k": _of_tasks(
        [], ["sparse_parity_scratchpad", "variable_assignment_hops"], scratchpad="", hops=""
    ),
    "cue_distances": _of_tasks([], ["cues_1", "cues_4"], plain=""),
    "cues": [
        *_of_tasks([], ["cues_1"], **dict.fromkeys(_OF_CUES, "")),
        # One task in each grid, that not all need be trained.
        *(f"synthetic.grids.{grid}.tasks=[cues_1]" for grid in _OF_CUES),
        *(f"synthetic.evaluate_synthetic.{task}=null" for task in ("cues_2", "cues_4")),
    ],
    "synthetic": [
        "run=runs/synthetic_study",
        *_of_tasks(
            _FOUND,
            [*_FOUND, "parity_scratchpad", "planted_correlation", "copy", "addition"],
            **dict.fromkeys(
                (
                    "variable_assignment",
                    "parity_scratchpad",
                    "other_positions",
                    "sparse_parity_k1",
                    "sparse_parity_k2",
                    "sparse_parity_k3",
                    "planted_k1",
                    "planted_k2",
                    "copy_pose",
                    "copy_predicted",
                    "addition_coupled",
                    "addition_pose",
                ),
                "",
            ),
            addition_predicted=",spread_of_coupled_ids=contiguous",
        ),
    ],
}
"""Study files, and the fields that tests override; `run` where the page's other commands have that folder."""


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
        length = 800 if "novels" in name else 160  # novels are measured at 1,024 tokens
        text = json_lines(seed, number, length).encode()
        (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    letter = json.loads(json_lines(2, 1))["text"][:200]
    (folder / "letter.txt").write_text(letter)
    tokenizer = train_bpe([json_lines(3, 4), "magic number of Oslo is 48213"], 320).to_json()
    save_model(folder / MODEL, tokenizer, "gpt_neox", max_position_embeddings=320)
    for name in ("olmo_configs", "pipeline"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("slurm", "analysis/examples", "analysis/reference"):  # a command may write there
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("cluster.env"))
    (folder / ".venv").symlink_to(sys.prefix)
    example = folder / "slurm" / "cluster.env.example"  # which a reader edits; here for a quicker start
    quick = f"export PATH={_python(folder).parent}:$PATH\n"
    example.write_text(_smaller(example.read_text()) + quick)


def how(shown: Shown) -> str | None:
    """What becomes of a command: "not run", "here", "at length" (here, slowly); None: nothing."""
    if any(re.search(pattern, shown.text) for pattern in NOT_RUN):
        return "not run"
    if shown.text.startswith(OF_A_SHELL):
        return "here"
    shown = without_make(shown)
    if module_of(shown) is None:
        return None
    is_study = shown.program == "pipeline/study.py"
    return "at length" if is_study or any(part in shown.text for part in AT_LENGTH) else "here"


def without_make(shown: Shown) -> Shown:
    """The command itself, or the study that `make` would run instead of it; of other targets nothing."""
    variables, typed, words = shown.text.partition("make ")
    if not typed or not re.fullmatch(r"(\w+=\S+ )*", variables):
        return shown
    said = subprocess.run(["make", "-n", *shlex.split(words)], cwd=ROOT, capture_output=True, text=True)
    studies = [line for line in said.stdout.splitlines() if " pipeline/study.py " in line]
    return Shown(f"{variables}{studies[0]}" if studies else "")


def module_of(shown: Shown) -> str | None:
    """The module of the program that a command runs; None if it runs none of this repository."""
    if shown.program is None or not (ROOT / shown.program).is_file() or shown.program.endswith(".sh"):
        return None
    module = shown.program.removesuffix(".py").replace("/", ".")
    package_of = {folder: f"sparsity_length.{package}" for package, folder in FOLDERS.items()}
    return re.sub(r"^(pipeline|analysis)(?=\.)", lambda folder: package_of[folder[1]], module)


def run(shown: Shown, folder: Path) -> None:
    """Run a command in a folder, at small size.

    Raises:
        Exception: the program failed.
    """
    if shown.text.startswith(OF_A_SHELL):
        _bash(shown.text, folder)
        return
    shown = without_make(shown)
    module = module_of(shown)
    program = shown.program
    assert module is not None
    typed = _bash(f"printf '%s\\0' {shown.text}", folder).split("\0")[:-1]
    begin = typed.index("sparsity") + 1 if "sparsity" in typed else typed.index(program)
    words = _at_small_size(program, typed[begin + 1 :])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NO_COLOR", "1")
        for variable in typed[:begin]:
            if re.match(r"[A-Z]\w*=", variable):
                name, _, value = variable.partition("=")
                patch.setenv(name, WORDS.get(value, _smaller(value)))
        if module.startswith("tests.benchmarks."):
            patch.syspath_prepend(BENCHMARKS)
            patch.setattr(sys, "argv", [program, *words])
            runpy.run_path(str(ROOT / program), run_name="__main__")
        else:
            if program == "pipeline/study.py":  # what it starts need not import everything anew
                patch.setattr(sys, "executable", str(_python(folder)))
            loaded = importlib.import_module(module)
            try:
                loaded.STAGE(words)
            except SystemExit as end:  # a study ends so, well or not
                assert not end.code, f"exit code {end.code}"


def _bash(code: str, folder: Path) -> str:
    programs = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": programs, "SCRATCH": "scratch/reader"}
    done = subprocess.run(["bash", "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _at_small_size(program: str | None, words: list[str]) -> list[str]:
    small = [
        VALUES.get(flag, WORDS.get(word, _smaller(word)))
        for flag, word in zip(["", *words], words, strict=False)  # each with the word before it
    ]
    if program == "pipeline/study.py":
        study, *others = small
        return [study, *STUDIES[Path(study).stem], *others]
    return [*small, *FURTHER_WORDS.get(program or "", [])]


def _smaller(word: str) -> str:
    for part, stands_here in PARTS.items():
        word = word.replace(part, stands_here)
    return word


@cache
def _python(folder: Path) -> Path:
    (folder / "programs").mkdir(exist_ok=True)
    return forked_stages.stand_ins(folder / "programs") / "python"


PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted(ROOT.rglob("*.md"))
    if not any(part.startswith(".") or part == "runs" for part in path.relative_to(ROOT).parts)
}
OF_COMMANDS = [name for name, path in PAGES.items() if path.name not in UNMARKED]


@cache
def anchors(page: Path) -> set[str]:
    """What a browser of the repository calls the headings: their words in lower case, joined by hyphens."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in words}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(name: str) -> None:
    page = PAGES[name]
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "`code`", prose)):
        path, _, fragment = target.partition("#")
        if not re.match(r"\w+:", target):
            led_to = (page.parent / path).resolve() if path else page
            assert led_to.exists() and (not fragment or fragment in anchors(led_to)), target


def complaint(shown: Shown) -> str | None:
    """Why a command of a page is none, or why nobody would notice that it fails; None: all is well."""
    if how(shown) is None:
        return "no test runs it; NOT_RUN says of which others that is right"
    if shown.program is None or "…" in shown.text:
        return None
    if not (ROOT / shown.program).is_file():
        return f"there is no {shown.program}"
    if shown.program.startswith(("pipeline/", "analysis/")):
        words = [re.sub(r"\$\w+", "1", word) for word in shown.arguments]  # variables of the shell
        try:
            stage_of(Path(shown.program).stem).parse(words)
        except (InputError, SystemExit) as end:
            return str(end)
    return None


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_every_command_is_one_that_its_program_takes_and_a_test_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for shown in commands_of(PAGES[name]):
        assert complaint(shown) is None, f"{shown.text}: {complaint(shown)}"


def test_bad_commands_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Type `pip install x`, and `python pipeline/no.py`:\n\n"
        "    A=b python pipeline/query.py --results r \"\n        SELECT '#1'\"   # the reader's own\n"
        "    make cake\n    python pipeline/query.py \\\n        --flag\n"
    )
    shown = commands_of(page)
    assert [one.text for one in shown] == [
        "A=b python pipeline/query.py --results r \"\n    SELECT '#1'\"",
        "make cake",
        "python pipeline/query.py --flag",
        "pip install x",
        "python pipeline/no.py",
    ]
    assert [complaint(one) is None for one in shown] == [True, False, False, True, False]


def run_of(name: str, shown: Shown, folder: Path) -> None:
    """Run a command of a page; where that fails, say which it was."""
    try:
        run(shown, folder)
    except (Exception, SystemExit) as error:
        raise AssertionError(f"{name} shows `{shown.text}`, which fails: {error}") from error


@pytest.fixture(scope="module")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that runs the commands of a page that are not slow, once; it returns the folder of all."""
    folder = tmp_path_factory.mktemp("pages")
    texts_and_models(folder)
    have_run = set()

    def run_all(name: str, commands: list[Shown]) -> None:
        for shown in commands:
            if shown.text not in have_run and how(shown) == "here":
                run_of(name, shown, folder)
            have_run.add(shown.text)

    run_all("pipeline/README.md", commands_of(PAGES["pipeline/README.md"], "The stages by hand"))

    @cache
    def page(name: str) -> Path:
        run_all(name, commands_of(PAGES[name]))
        return folder

    return page


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_COMMANDS)
def test_the_commands_and_the_python_of_a_page_run(
    name: str, run_page: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_page(name)
    monkeypatch.chdir(folder)
    for code in python_of(PAGES[name]) if name not in PYTHON_ELSEWHERE else []:
        small = code.replace("HuggingFaceTB/SmolLM2-135M", MODEL).replace("(8, 32, 128, 512)", "(4, 8, 16)")
        exec(small.replace("The text …", (folder / "letter.txt").read_text()), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_COMMANDS)
def test_the_long_commands_of_a_page_run(name: str, run_page: Callable[[str], Path]) -> None:
    folder = run_page(name)
    for shown in commands_of(PAGES[name]):
        if how(shown) == "at length":
            run_of(name, shown, folder)


@pytest.mark.slow
def test_the_recipes_lead_to_what_they_say(run_page: Callable[[str], Path]) -> None:
    folder = run_page("pipeline/RECIPES.md")
    mine = folder / "runs" / "mine"
    header, *rows = (mine / "ranked.csv").read_text().splitlines()
    gains = [float(row.split(",")[2]) for row in rows]
    assert header == "document_id,targets,gain_nats"
    assert len(gains) == 5 and gains == sorted(gains, reverse=True)
    assert MODEL in (mine / "explorer.html").read_text()
    assert (folder / "explained.html").is_file()
    assert list((mine / f"rules/sparse_context_losses/{MODEL}").glob("*.parquet"))
