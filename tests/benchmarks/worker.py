"""A process for every variant, so that each one's memory is its own and none warms another's caches.

Timing goes round robin over the processes, one at work at a time, so that a busy machine hurts all alike.
Peak extra memory is the high-water mark of the process's resident memory over a run (VmHWM of
/proc/self/status, set back before it), less what was resident before; on a GPU, of torch's allocator.
"""

import importlib
import multiprocessing
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from accounting import ModelSizes, Work, num_pairs
from machine import use_threads
from matrix_product_peak import synchronize
from problem import Problem
from variants import Influences, Variant

from pipeline.models.devices import keep_freed_memory

NUM_CHECKED = 6
"""Removed tokens that are compared before any timing; those of the timed runs are compared after it."""


@dataclass(frozen=True)
class VariantName:
    """Which variant a process runs."""

    label: str
    module: str
    attribute: str
    dtype: str = "float32"
    arguments: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> str:
        """Unique in a run."""
        return f"{self.label}, {self.dtype}"


@dataclass(frozen=True)
class Introduction:
    """What a process tells of itself once it is ready, with its influences of the first far tokens."""

    intervention: str
    is_unsigned: bool
    note: str
    work: Work
    checked: Influences


@dataclass(frozen=True)
class Timed:
    """One timed run."""

    seconds: float
    num_evaluations: int
    chunk_seconds: float
    """Of the whole chunk; extrapolated where a sample was timed."""
    milliseconds_per_pair: float
    peak_extra_bytes: int
    influences: Influences


class UnavailableError(Exception):
    """The variant cannot run here; says why."""


class Worker:
    """The parent's hand on one process."""

    def __init__(self, name: VariantName, problem: Problem) -> None:
        self.name = name
        # Forked from a process that has read the libraries once and computed nothing: quick, and safe.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "olmo.model", "pandas"])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, name, problem), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, question: str) -> Any:
        """`introduce` or `time`; see `Answers`.

        Raises:
            UnavailableError: it cannot run here, or has failed.
        """
        try:
            self._connection.send(question)
            answer = self._connection.recv()
        except (EOFError, BrokenPipeError) as error:
            raise UnavailableError("its process ended, most likely for want of memory") from error
        if isinstance(answer, str):
            raise UnavailableError(answer)
        return answer

    def stop(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(timeout=10)
        self._process.terminate()


def serve(connection: Connection, name: VariantName, problem: Problem) -> None:
    """Answer until the parent hangs up."""
    use_threads(problem.threads)
    keep_freed_memory()  # as the stages do
    warnings.filterwarnings("ignore")
    answers = Answers(name, problem)
    while True:
        try:
            question = connection.recv()
        except EOFError:
            return
        connection.send(answers(question))


class Answers:
    """A variant, made when first asked about: `introduce` -> Introduction, `time` -> Timed, or why not."""

    def __init__(self, name: VariantName, problem: Problem) -> None:
        self._name, self._problem = name, problem
        self._ready: tuple[Variant, ModelSizes] | None = None

    def __call__(self, question: str) -> Introduction | Timed | str:
        try:
            self._ready = self._ready or self._made()
            variant, sizes = self._ready
            return (
                _introduction(variant, sizes) if question == "introduce" else _timed(variant, self._problem)
            )
        except ImportError as error:
            return f"{error}; pip install '.[benchmark]' brings the other tools"
        except Exception as error:  # noqa: BLE001  whatever another tool raises, the other variants go on
            traceback.print_exc(file=sys.stderr)
            return f"{type(error).__name__}: {error}"

    def _made(self) -> tuple[Variant, ModelSizes]:
        model = self._problem.load(self._name.dtype)
        make = getattr(importlib.import_module(self._name.module), self._name.attribute)
        return make(self._problem, model, **dict(self._name.arguments)), ModelSizes.of(model)


def _introduction(variant: Variant, sizes: ModelSizes) -> Introduction:
    return Introduction(
        variant.intervention,
        getattr(variant, "is_unsigned", False),
        variant.note,
        variant.work(sizes),
        variant.influences(range(min(NUM_CHECKED, len(variant.sample())))),
    )


def _timed(variant: Variant, problem: Problem) -> Timed:
    device, removed = torch.device(problem.device), variant.sample()
    resident = _reset_peak(device)
    synchronize(device)
    start = time.perf_counter()
    influences = variant.influences(removed)
    synchronize(device)
    seconds = time.perf_counter() - start
    evaluations = len(removed) + variant.evaluations_beyond
    chunk_seconds = seconds * variant.num_evaluations() / evaluations
    return Timed(
        seconds, len(removed), chunk_seconds, 1000 * chunk_seconds / num_pairs(problem.lengths),
        max(0, _peak(device) - resident), influences,
    )  # fmt: skip


def _reset_peak(device: torch.device) -> int:
    """Forget the high-water mark; the bytes that are in use now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    Path("/proc/self/clear_refs").write_text("5")
    return _status_bytes("VmRSS")


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status_bytes("VmHWM")


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {field}")
