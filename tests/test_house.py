"""The conventions of this repository as tests: floors, doors, names, manuals, sizes, docstrings."""

import argparse
import ast
import importlib
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for folder in ("pipeline", "analysis") for path in (ROOT / folder).rglob("*.py"))
BEGINNING = """\
import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.start import start

    start(__file__)
"""
PROGRAMS = [
    path
    for folder in ("pipeline", "analysis")
    for path in sorted((ROOT / folder).glob("*.py"))
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
]
STAGES = {path.stem for path in PROGRAMS if path.parent.name == "pipeline"} - {"query"}

# Rooms and top modules from the ground up. A room imports from the floors below, nothing of its own floor.
STOREYS = (
    {"errors", "interruption"},
    {"endings"},
    {"results", "positions", "explorer_page"},
    {"text"},
    {"stage"},
    {"start", "models"},
    {"console", "training", "query"},
    {"influence"},
    {"synthetic", "measuring"},
    {"theory", "studies", "explaining"},
    {"analysis", *STAGES},
)
FLOORS = {room: floor for floor, rooms in enumerate(STOREYS) for room in rooms}
DOORS = {
    "transformers": {
        "pipeline/models/huggingface.py",
        "pipeline/models/huggingface_export.py",
        "pipeline/models/huggingface_files.py",
        "pipeline/models/huggingface_inspection.py",
        "pipeline/models/huggingface_prefix.py",
        "pipeline/synthetic/gpt_neox_trunk.py",
    },
    "datasets": {"pipeline/text/documents.py"},
    "accelerate": {"pipeline/training/", "pipeline/stage.py"},
    "olmo": {"pipeline/models/", "pipeline/training/", "pipeline/synthetic/"},
    "hf_olmo": set(),
    "pyarrow": {"pipeline/results/"},
    "duckdb": {"pipeline/query.py"},
    "rich": {"pipeline/studies/live_lines.py"},
    "matplotlib": {"analysis/"},
    "statsmodels": {"analysis/generalization/gap_regression.py"},
    "captum": {
        "pipeline/influence/methods/input_x_gradient.py",
        "pipeline/influence/methods/integrated_gradients.py",
    },
    "sklearn": {"pipeline/influence/methods/surrogate.py"},
    "HanTa": {"analysis/tokens/parts_of_speech.py"},
}
MAX_LINES = 400


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Dotted names of all modules imported anywhere in a file, in functions too.

    `from pipeline import errors` counts as pipeline.errors.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            if module in ("pipeline", "analysis"):
                yield from (f"{module}.{alias.name}" for alias in node.names)
            else:
                yield module


def room(dotted_name: str) -> str | None:
    """The room or top module that a dotted name lies in, "analysis" for all of it; None where not ours."""
    house, _, inside = dotted_name.partition(".")
    if house == "analysis":
        return "analysis"
    return inside.partition(".")[0] if house == "pipeline" else None


def forbidden_imports(dotted_name: str, tree: ast.Module) -> list[str]:
    """What a module imports against the directions of the floors."""
    here = room(dotted_name)
    assert here is not None
    forbidden = []
    for imported in imported_modules(tree):
        there = room(imported)
        if there is not None and there != here and FLOORS[there] >= FLOORS[here]:
            forbidden.append(imported)
    return forbidden


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_every_room_has_a_floor() -> None:
    rooms = {room(dotted(path)) for path in SOURCES} - {""}
    assert rooms <= FLOORS.keys(), f"no floor for {sorted(map(str, rooms - FLOORS.keys()))}"
    assert {"tokenize_c4", "pretrain", "loss_differences", "influential_tokens", "length_losses"} <= STAGES


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_run_down_only(path: Path) -> None:
    if dotted(path) != "pipeline":
        assert forbidden_imports(dotted(path), parsed(path)) == []


@pytest.mark.parametrize(
    ("module", "line", "is_forbidden"),
    [
        ("pipeline.results.folder", "import pipeline.stage", True),
        ("pipeline.results.folder", "from pipeline import stage", True),
        ("pipeline.results.folder", "from pipeline.text.split import Split", True),
        ("pipeline.text.split", "from pipeline.results.files import write_json", False),
        ("pipeline.positions.schemes", "from pipeline.results.files import write_json", True),
        ("pipeline.errors", "def late():\n    from pipeline.models.olmo import load_olmo", True),
        ("pipeline.training.trainer", "from pipeline.influence import rules", True),
        ("pipeline.training.trainer", "from pipeline.models.rope import use_position_ids", False),
        ("pipeline.models.olmo", "from pipeline.pretrain import main", True),
        ("pipeline.query", "from pipeline.loss_differences import main", True),
        ("pipeline.influence.rules", "from pipeline.influential_tokens import parser", True),
        ("pipeline.influence.rules", "from pipeline.models.causal_lm import CausalLM", False),
        ("pipeline.pretrain", "from pipeline.loss_differences import parser", True),
        ("pipeline.pretrain", "from pipeline.influence.rules import RULES", False),
        ("pipeline.synthetic.finding", "from pipeline.influence.rules import RULES", False),
        ("pipeline.influence.rules", "from pipeline.synthetic.finding import far_dependencies", True),
        ("pipeline.influence.rules", "from pipeline.studies.command import Command", True),
        ("pipeline.models.olmo", "from analysis import figures", True),
        ("analysis.figures", "from pipeline.results.folder import read_artefact", False),
        ("analysis.figures", "from pipeline.loss_differences import main", True),
    ],
)
def test_the_floors_by_example(module: str, line: str, is_forbidden: bool) -> None:
    assert bool(forbidden_imports(module, ast.parse(line))) == is_forbidden


@pytest.mark.parametrize("library", DOORS)
def test_outside_libraries_stay_behind_their_doors(library: str) -> None:
    users = {
        relative(path)
        for path in SOURCES
        if any(name.partition(".")[0] == library for name in imported_modules(parsed(path)))
    }
    behind = {user for user in users for door in DOORS[library] if user.startswith(door)}
    assert users == behind, f"{library} is imported outside of {sorted(DOORS[library])}"


def test_no_module_hides_a_library() -> None:
    # `python pipeline/x.py` puts pipeline/ first on the path: pipeline/datasets.py would be `datasets`.
    names = {path.stem for path in (ROOT / "pipeline").iterdir() if path.suffix == ".py" or path.is_dir()}
    libraries = set(sys.stdlib_module_names) | importlib.metadata.packages_distributions().keys()
    assert {"json", "datasets", "tokenizers", "torch", "yaml"} <= libraries
    assert names & (libraries - {"pipeline", "analysis"}) == set()


def test_names_say_what_is_inside() -> None:
    empty = re.compile(r"(^|_)(utils?|helpers?|misc|common|process|handle|v2)(_|$)")
    folders = {folder for path in SOURCES for folder in path.relative_to(ROOT).parts[:-1]}
    names = {path.stem for path in SOURCES} | folders
    assert empty.search("text_utils") and empty.search("process") and not empty.search("processes")
    assert [name for name in sorted(names) if empty.search(name)] == []


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by the bare name, and collects nothing at all where two share one."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


@pytest.mark.parametrize("path", sorted({*SOURCES, *(ROOT / "tests").rglob("*.py")}), ids=relative)
def test_no_file_is_longer_than_a_reader_likes(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", PROGRAMS, ids=relative)
def test_help_is_a_manual(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = importlib.import_module(dotted(path))
    parser: argparse.ArgumentParser = program.parser()
    with pytest.raises(SystemExit) as stopped:
        parser.parse_args(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    usage, _, manual = shown.partition("\n\n")
    assert usage.startswith("usage: ")
    assert manual.startswith(program.__doc__.strip())
    for action in parser._actions:
        assert action.help, f"{action.option_strings or action.dest} has no help"
    # a command that finishes on a laptop, on what `make demo` leaves
    commands = re.findall(rf"python {relative(path)}((?:[^\n]*\\\n)*[^\n]*)", manual)
    assert any("runs/demo" in command for command in commands), "no laptop command"


@pytest.mark.parametrize("path", PROGRAMS, ids=relative)
def test_a_program_begins_like_every_other_and_has_a_parser_and_a_main(path: Path) -> None:
    # First of all, so that whatever happens from then on, imports included, ends in one sentence.
    manual = ast.get_source_segment(path.read_text(encoding="utf-8"), parsed(path).body[0])
    assert path.read_text(encoding="utf-8").startswith(f"{manual}\n\n{BEGINNING}\n")
    functions = {node.name: node for node in parsed(path).body if isinstance(node, ast.FunctionDef)}
    assert [argument.arg for argument in functions["parser"].args.args] == []
    assert [argument.arg for argument in functions["main"].args.args] == ["arguments"]


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def unannotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    starred = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    missing = [
        argument.arg
        for argument in [*named, *starred]
        if argument.annotation is None and argument.arg not in ("self", "cls")
    ]
    return missing + (["return"] if function.returns is None else [])


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_everything_public_is_explained_and_every_signature_annotated(path: Path) -> None:
    assert ast.get_docstring(parsed(path)), "the module has no docstring"
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            is_nested = node not in parsed(path).body and not _is_method(node, parsed(path))
            assert is_nested or ast.get_docstring(node), f"{node.name} has no docstring"
    for function in functions_of(path):
        assert unannotated(function) == [], f"{function.name} is not fully annotated"


def _is_method(node: ast.AST, tree: ast.Module) -> bool:
    return any(isinstance(parent, ast.ClassDef) and node in parent.body for parent in ast.walk(tree))


def test_annotations_by_example() -> None:
    source = "def f(self, a, /, b: int, *c, d=1, **e: str): ..."
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert unannotated(function) == ["a", "d", "c", "return"]


def test_the_page_of_the_pipeline_names_every_stage_and_functions_that_are_there() -> None:
    page = (ROOT / "pipeline" / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", page))
    for file, name in named:
        path = ROOT / "pipeline" / file
        assert path.is_file(), f"pipeline/README.md names {file}"
        defined = re.compile(rf"^(def|class) {name}\b|^{name}\b", re.MULTILINE)
        assert not name or defined.search(path.read_text(encoding="utf-8")), f"{file} has no {name}"
    assert {path.name for path in PROGRAMS if path.parent.name == "pipeline"} <= {file for file, _ in named}
