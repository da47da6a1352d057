"""One notebook executed in a kernel of its own, which never outlives this process."""

import atexit
import builtins
import hashlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from analysis.notebook_inputs import ROOT
from pipeline.errors import InputError
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
    """Execute one notebook and write the executed copy.

    Args:
        path: of the notebook.
        figures: where the copy, its figures and tables go; no one else writes there meanwhile.
        parameters: as of `with_parameters`.
        made_from: the fingerprint of its inputs.
        allow_partial: as of `with_parameters`.

    Raises:
        InputError: a cell met bad input, such as an artefact that is missing, or could not write.
        SystemExit: a cell failed otherwise, in a sentence; the traceback stands in <name>.failed.ipynb.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook = with_parameters(notebook, parameters, allow_partial=allow_partial)
    failed = figures / f"{path.stem}.failed.ipynb"
    before = _states(figures)
    try:
        _run(notebook)
    except CellExecutionError as error:
        if error.ename == "InputError" or _is_os_error(error.ename):
            raise InputError(f"{path.name}: {error.evalue}") from error
        _write(failed, notebook)
        raise SystemExit(
            f"{path.name}: a cell failed: {error.ename}: {' '.join(error.evalue.split())}; its traceback is"
            f" in {failed}"
        ) from error
    except DeadKernelError as error:
        raise InputError(f"{path.name}: its kernel ended by itself, mostly for want of memory") from error
    written = [name for name, state in _states(figures).items() if before.get(name) != state]
    notebook.metadata[_METADATA] = {
        "made_from": made_from,
        "written": {name: _sha256(figures / name) for name in written},
    }
    _write(figures / path.name, notebook)
    failed.unlink(missing_ok=True)


def _run(notebook: nbformat.NotebookNode) -> None:
    """Execute the cells, in place.

    In a thread, for nbclient's own handlers of signals would replace this program's; the kernel is killed
    whatever ends this thread.
    """
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)  # nbclient announces each kernel
    failures: list[Exception] = []
    with _folder_of_jupyter():
        client = NotebookClient(
            notebook,
            timeout=None,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
            kernel_name="python3",
            resources={"metadata": {"path": str(ROOT)}},
        )

        def work() -> None:
            try:
                client.execute()
            except Exception as error:  # noqa: BLE001  (raised again by whoever waits)
                failures.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            thread.join()
        except BaseException:
            atexit.unregister(client._cleanup_kernel)
            _kill_kernel(client)
            raise
    if failures:
        raise failures[0]


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


def _states(figures: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file that a notebook may have written."""
    return {
        path.name: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(figures.glob("*"))
        if path.suffix in (".png", ".pdf", ".parquet", ".csv") and path.is_file()
    }


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _write(path: Path, notebook: nbformat.NotebookNode) -> None:
    write_atomically(path, lambda part: part.write_text(nbformat.writes(notebook), encoding="utf-8"))
