"""What the code of a program says, so that two versions of it can be told apart.

The code is the program's file and all modules of this repository that it imports, late imports included.
Comments, docstrings and layout say nothing to the machine, and do not count.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
HOUSES = ("pipeline", "analysis")
"""The packages of this repository."""


@cache
def code_of(program: str) -> dict[str, str]:
    """File, from the repository's root -> hash of what it says, for all that a program runs of this house.

    Args:
        program: its file, from the repository's root; of one that is elsewhere, nothing is known.
    """
    start = _ROOT / program
    found: dict[str, str] = {}
    waiting = [start] if start.is_file() else []
    while waiting:
        path = waiting.pop()
        name = path.relative_to(_ROOT).as_posix()
        if name not in found:
            found[name], imported = _read(path)
            waiting += imported
    return found


@cache
def _read(path: Path) -> tuple[str, tuple[Path, ...]]:
    """The hash of what a module says, and the modules of this house that it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    ours = (name for name in _imported(nodes) if name.partition(".")[0] in HOUSES)
    imported = tuple({file for name in ours for file in files_of(name)})
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [line for line in node.body if not _is_only_words(line)]
    return sha256(ast.dump(tree).encode()).hexdigest()[:16], imported


def _is_only_words(line: ast.stmt) -> bool:
    return (
        isinstance(line, ast.Expr)
        and isinstance(line.value, ast.Constant)
        and isinstance(line.value.value, str)
    )


@cache
def imported_names(source: str) -> frozenset[str]:
    """Dotted names of what is imported, in functions too; `from a import b` gives a.b, a module or not."""
    return frozenset(_imported(ast.walk(ast.parse(source))))


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def files_of(name: str) -> frozenset[Path]:
    """The module of a dotted name, or of what it is a name in, and the packages it lies in."""
    parts = name.split(".")
    modules = [_ROOT.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
    candidates = [path for module in modules for path in (module.with_suffix(".py"), module / "__init__.py")]
    return frozenset(path for path in candidates if path.is_file())
