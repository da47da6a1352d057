"""Notebooks executed, each in a kernel of its own, which never outlives this process."""

import atexit
import builtins
import hashlib
import logging
import os
import re
import shutil
import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from analysis.notebook_inputs import ROOT
from pipeline.errors import InputError, os_error_sentence
from pipeline.results.files import write_atomically

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
        lines += ["from analysis.partial_cells import tell_below_every_cell", "tell_below_every_cell()"]
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
