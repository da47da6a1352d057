"""What the code of a program says, so that two versions of it can be told apart.

The code is the program's file and all modules of this repository that it imports, late imports included.
Comments, docstrings and layout say nothing to the machine, and do not count.
"""

import ast
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_HOUSES = ("pipeline", "analysis")


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
    imported = tuple(file for name in _imported(tree) if (file := _file_of(name)))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [line for line in node.body if not _is_only_words(line)]
    return sha256(ast.dump(tree).encode()).hexdigest()[:16], imported


def _is_only_words(line: ast.stmt) -> bool:
    return (
        isinstance(line, ast.Expr)
        and isinstance(line.value, ast.Constant)
        and isinstance(line.value.value, str)
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    """Dotted names of modules of this house, and of what is taken from them, which may be a module."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.partition(".")[0] in _HOUSES)


def _file_of(dotted_name: str) -> Path | None:
    path = _ROOT.joinpath(*dotted_name.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.is_file()), None)
