"""What decides what a notebook or a program shows: its text, code, what it reads, parameters, versions.

What a notebook needs and results may lack; a notebook that lacks something is skipped, and says what.

Notebooks executed, each in a kernel of its own, which never outlives this process.
"""

import argparse
import atexit
import builtins
import hashlib
import logging
import os
import re
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from analysis.tokens.kinds import CATEGORIES_FILE
from pipeline.cli import InputError, os_error_sentence
from pipeline.measuring.rules import CONTROLS
from pipeline.results.files import write_atomically
from pipeline.results.read import artefacts_in, read_artefact, read_model_facts
from pipeline.studies.run import HOUSES, files_of, imported_names
from pipeline.text.folder import MANIFEST_FILE

ROOT = Path(__file__).resolve().parents[1]
_READS_TEXT = ROOT / "pipeline" / "text"


def fingerprint(results: Path, source: Path, parameters: Mapping[str, Any], figures: Path) -> str:
    """SHA-256 of all that decides what a notebook or a program shows.

    Code, settings, marks and manifests enter by their content; Parquet and token files by name, size and
    time, as reading gigabytes to learn that nothing is to be done would defeat the purpose.

    Args:
        results: the results folder.
        source: its file, a notebook or a module.
        parameters: those that it gets.
        figures: where what it makes goes, which is no input even if it lies in a folder that is.
    """
    code, libraries = code_used_by(source)
    folders = [results, *map(Path, parameters.get("also_results", ()))]
    folders += [Path(parameters["needles"])] if "needles" in parameters else []
    if any(_READS_TEXT in path.parents for path in code):
        folders.append(Path(parameters.get("data") or results.parent / "data"))
    digest = hashlib.sha256(repr(sorted(parameters.items())).encode())
    for part in (*_code_states(source, code), *_versions(libraries), *_folder_states(folders, figures)):
        digest.update(part + b"\0")
    return digest.hexdigest()


def code_used_by(source: Path) -> tuple[list[Path], list[str]]:
    """The files of this repository that a file imports, directly or through others; all libraries."""
    names = {name for text in _texts_of_code(source) for name in imported_names(text)}
    files: set[Path] = set()
    libraries: set[str] = set()
    while names:
        name = names.pop()
        house = name.partition(".")[0]
        if house not in HOUSES:
            libraries.add(house)
            continue
        for file in files_of(name) - files:
            files.add(file)
            names |= imported_names(file.read_text(encoding="utf-8"))
    return sorted(files), sorted(libraries - sys.stdlib_module_names)


def _texts_of_code(source: Path) -> list[str]:
    """The code cells of a notebook; a module's whole text."""
    if source.suffix != ".ipynb":
        return [source.read_text(encoding="utf-8")]
    import nbformat  # late, as a program needs none of it

    cells = nbformat.read(source, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code"]


def _code_states(source: Path, code: list[Path]) -> Iterator[bytes]:
    yield source.read_bytes()
    for path in code:
        yield f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes()


def _versions(libraries: list[str]) -> Iterator[bytes]:
    yield f"python {sys.version}".encode()
    for library in libraries:
        for distribution in sorted(_distributions().get(library, ())):  # none where it is not installed
            yield f"{distribution} {_version(distribution)}".encode()


@cache
def _version(distribution: str) -> str:
    return version(distribution)


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def _folder_states(folders: list[Path], figures: Path) -> Iterator[bytes]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            is_temporary = path.name.startswith((".", "lock"))
            if is_temporary or not path.is_file() or figures.resolve() in path.resolve().parents:
                continue
            name = f"{path.relative_to(folder)}".encode()
            if path.suffix in (".parquet", ".npy"):
                stat = path.stat()
                yield name + f" {stat.st_size} {stat.st_mtime_ns}".encode()
            else:
                yield name + b"\n" + path.read_bytes()


_Need = Callable[[argparse.Namespace], str | None]
"""What lacks, for the arguments of run_notebooks.py; None where nothing does."""


def what_lacks(notebook: str, arguments: argparse.Namespace) -> str | None:
    """What the notebook of this name would need and the results lack; None where it can be executed.

    Args:
        notebook: its name.
        arguments: of run_notebooks.py.
    """
    return _NEEDS[notebook](arguments) if notebook in _NEEDS else None


def compares_rules(results: Path) -> bool:
    """Whether results hold selection rules to compare: several beside the controls.

    Raises:
        InputError: no results of influential tokens.
    """
    rules = read_artefact(results, "sparse_context_losses", ["rule"])["rule"]
    return len(set(rules) - set(CONTROLS)) >= 2


def compares_scales(folders: Sequence[Path]) -> bool:
    """Whether results folders tell of models of several sizes or training steps."""
    facts = [
        of_model for folder in folders for of_model in read_model_facts(folder, "loss_differences").values()
    ]
    return len({(of_model.get("num_parameters"), of_model.get("train_step")) for of_model in facts}) >= 2


def _all(*needs: _Need) -> _Need:
    """All of these; the first that lacks is told."""
    return lambda arguments: next((lacks for need in needs if (lacks := need(arguments))), None)


def _several_rules(arguments: argparse.Namespace) -> str | None:
    return None if compares_rules(arguments.results) else "only one selection rule beside the controls"


def _a_target_that_gains(arguments: argparse.Namespace) -> str | None:
    k_star = read_artefact(arguments.results, "dependency_sparsity", ["dependency_sparsity", "is_censored"])
    if (k_star["dependency_sparsity"].notna() | k_star["is_censored"]).any():
        return None
    return "no target gains enough of its far context to have a k*"


def _several_scales(arguments: argparse.Namespace) -> str | None:
    if compares_scales([arguments.results, *arguments.also_results]):
        return None
    return "the results tell of only one model size and training step"


def _artefact(artefact: str) -> _Need:
    """The notebook is about an artefact that not every study measures."""

    def lacks(arguments: argparse.Namespace) -> str | None:
        present = artefacts_in(arguments.results)
        if artefact in present:
            return None
        return f"the results hold no '{artefact}'; they hold {', '.join(present) or 'nothing'}"

    return lacks


def _text_as(*files: str) -> _Need:
    """The text that was measured, or what is kept in its place: a folder of data that holds one of these."""

    def lacks(arguments: argparse.Namespace) -> str | None:
        beside = arguments.results.parent / "data"
        if arguments.data is not None or any((beside / file).is_file() for file in files):
            return None
        return "no tokenized data beside the results; name it with --data"

    return lacks


def _planted_needles(arguments: argparse.Namespace) -> str | None:
    if arguments.needles is not None:
        return None
    return "no planted needles; name the folder of plant_needles with --needles"


_NEEDS: dict[str, _Need] = {
    "loss_differences": _artefact("loss_differences"),
    "long_perplexity": _artefact("loss_differences"),
    "length_losses": _artefact("length_losses"),
    "influential_tokens": _artefact("sparse_context_losses"),
    "dependency_sparsity": _all(_artefact("dependency_sparsity"), _a_target_that_gains),
    "sparsity_and_generalization": _all(_artefact("dependency_sparsity"), _a_target_that_gains),
    "selection_rules": _all(
        _artefact("sparse_context_losses"), _several_rules, _artefact("influential_tokens")
    ),
    "model_scale": _several_scales,
    "sparse_functional_attention": _artefact("sparse_functional_attention"),
    "synthetic_tasks": _artefact("synthetic_accuracy"),
    "found_dependencies": _artefact("found_dependencies"),
    "token_categories": _all(_text_as(MANIFEST_FILE, CATEGORIES_FILE), _artefact("sparse_context_losses")),
    "influential_places": _all(_text_as(MANIFEST_FILE), _artefact("influential_tokens")),
    "needles": _planted_needles,
}


_METADATA = "execution_of_results"


def is_up_to_date(executed: Path, made_from: str) -> bool:
    """Whether `executed` was made from these inputs, and all that it wrote is there, unchanged."""
    try:
        execution = nbformat.read(executed, as_version=4).metadata.get(_METADATA, {})
    except (OSError, ValueError, AttributeError):  # not there, or damaged
        return False
    written = execution.get("written", {})
    return execution.get("made_from") == made_from and all(
        _sha256(executed.parent / name) == sha256 for name, sha256 in written.items()
    )


def with_parameters(
    notebook: nbformat.NotebookNode, parameters: Mapping[str, Any], *, allow_partial: bool = False
) -> nbformat.NotebookNode:
    """`notebook` with a cell setting `parameters`, after the one tagged "parameters" with the defaults.

    Args:
        notebook: is changed.
        parameters: name -> value.
        allow_partial: read what is complete of partial results, and say below every cell what that was.
    """
    place = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    lines = [f"{name} = {value!r}" for name, value in parameters.items()]
    if allow_partial:
        lines += ["from analysis.read import tell_below_every_cell", "tell_below_every_cell()"]
    cell = nbformat.v4.new_code_cell(
        "\n".join(lines), id="injected", metadata={"tags": ["injected-parameters"]}
    )
    notebook.cells.insert(place + 1, cell)
    return notebook


def execute(
    path: Path, figures: Path, parameters: Mapping[str, Any], made_from: str, *, allow_partial: bool = False
) -> None:
    """Execute one notebook, as `execute_all` does."""
    for _ in execute_all({path: made_from}, figures, parameters, allow_partial=allow_partial):
        pass


def execute_all(
    made_from: Mapping[Path, str],
    figures: Path,
    parameters: Mapping[str, Any],
    *,
    num_at_once: int = 1,
    allow_partial: bool = False,
) -> Iterator[Path]:
    """Execute notebooks, several at once, write the executed copies, and yield each path as it ends.

    In threads, for nbclient's own handlers of signals would replace this program's. The first failure, or an
    interruption, ends the other notebooks too; whatever ends this, no kernel is left.

    Args:
        made_from: path of a notebook -> the fingerprint of its inputs.
        figures: where the copies, their figures and tables go; no one else writes there meanwhile.
        parameters: as of `with_parameters`.
        num_at_once: kernels, each of one thread, so that no figure depends on it.
        allow_partial: as of `with_parameters`.

    Raises:
        InputError: a cell met bad input, such as an artefact that is missing, or could not write.
        SystemExit: a cell failed otherwise, in a sentence; the traceback stands in <name>.failed.ipynb.
    """
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)  # nbclient announces each kernel
    waiting, clients = deque(made_from.items()), list[NotebookClient]()
    ended: SimpleQueue[tuple[Path, BaseException | None]] = SimpleQueue()

    def work() -> None:
        while waiting:
            with suppress(IndexError):  # another thread took the last one
                path, inputs = waiting.popleft()
                failure = None
                try:
                    _execute(path, figures, parameters, inputs, allow_partial, clients)
                except BaseException as error:  # noqa: BLE001  (raised again by whoever waits)
                    failure = error
                ended.put((path, failure))

    with _folder_of_jupyter():
        _resolve_traits()
        for _ in range(min(num_at_once, len(made_from))):
            threading.Thread(target=work, daemon=True).start()
        try:
            for _ in made_from:
                path, failure = ended.get()
                if failure is not None:
                    raise failure
                yield path
        except BaseException:
            waiting.clear()
            for client in list(clients):
                atexit.unregister(client._cleanup_kernel)
                _kill_kernel(client)
            raise


def _execute(
    path: Path,
    figures: Path,
    parameters: Mapping[str, Any],
    made_from: str,
    allow_partial: bool,
    clients: list[NotebookClient],
) -> None:
    """One notebook; its figures appear in the folder once it has run to its end.

    Args:
        clients: holds that of this notebook while it runs.
    """
    # Of its own, so that it is known which files it wrote; from the root on, for a kernel runs elsewhere.
    unfinished = figures.resolve() / f".{path.stem}.part"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    notebook = with_parameters(
        nbformat.read(path, as_version=4),
        dict(parameters) | {"figures_folder": str(unfinished)},
        allow_partial=allow_partial,
    )
    failed = figures / f"{path.stem}.failed.ipynb"
    try:
        _run(notebook, clients)
    except CellExecutionError as error:
        if error.ename == "InputError" or _is_os_error(error.ename):
            raise InputError(f"{path.name}: {_without_number(error.evalue)}") from error
        _write(failed, notebook)
        raise SystemExit(
            f"{path.name}: a cell failed: {error.ename}: {' '.join(error.evalue.split())}; its traceback is"
            f" in {failed}"
        ) from error
    except DeadKernelError as error:
        raise InputError(f"{path.name}: its kernel ended by itself, mostly for want of memory") from error
    else:
        written = {file.name: _sha256(file) for file in sorted(unfinished.iterdir())}
        for name in written:
            (unfinished / name).replace(figures / name)
        notebook.metadata[_METADATA] = {"made_from": made_from, "written": written}
        _write(figures / path.name, notebook, {str(unfinished): str(figures)})
        failed.unlink(missing_ok=True)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _resolve_traits() -> None:
    """Make a manager of kernels and a client in this thread, and leave them.

    With the first of a class traitlets puts classes in the place of their names, and fails where a second
    thread does so at the same time.
    """
    NotebookClient(nbformat.v4.new_notebook()).create_kernel_manager().client()


def _run(notebook: nbformat.NotebookNode, clients: list[NotebookClient]) -> None:
    """Execute the cells, in place."""
    client = NotebookClient(
        notebook,
        timeout=None,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
    )
    clients.append(client)
    try:
        client.execute(env=os.environ | {"OMP_NUM_THREADS": "1"})
    finally:
        clients.remove(client)


def _kill_kernel(client: NotebookClient) -> None:
    process = getattr(getattr(client.km, "provisioner", None), "process", None)
    if process is not None:  # else it has not started, or sees within a second that its parent has gone
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own


@contextmanager
def _folder_of_jupyter() -> Iterator[None]:
    """A folder for what jupyter writes, instead of the user's, whose settings could change what is shown."""
    names = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")
    earlier = {name: os.environ.get(name) for name in names}
    with TemporaryDirectory(prefix="notebooks-", ignore_cleanup_errors=True) as folder:
        os.environ.update(dict.fromkeys(names, folder))
        try:
            yield
        finally:
            for name, value in earlier.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _is_os_error(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, OSError)


def _without_number(said: str) -> str:
    """A sentence for what the system refused a kernel, which tells it as Python does; other texts stay."""
    match = re.match(r"\[Errno (\d+)\] [^:]*(?:: '(.*)')?$", said)
    path = match and match[2]
    refused = match and OSError(int(match[1]), said, *([path] if path else []))
    return (refused and os_error_sentence(refused)) or said


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _write(path: Path, notebook: nbformat.NotebookNode, renamed: Mapping[str, str] | None = None) -> None:
    """Write a notebook, with some texts, such as a folder's path, replaced by others."""
    text = nbformat.writes(notebook)
    for old, new in (renamed or {}).items():
        text = text.replace(old, new)
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
