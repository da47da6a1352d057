"""The next step's batch, made by a thread while the device computes this one."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class Prefetch(Generic[Batch]):
    """Calls `make_batch(step)`, a pure function, one step ahead of where it is asked."""

    def __init__(self, make_batch: Callable[[int], Batch]) -> None:
        self._make_batch = make_batch
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._ahead: dict[int, Future[Batch]] = {}

    def __call__(self, step: int) -> Batch:
        """The batch of `step`; that of the step after it is begun."""
        ready = self._ahead.pop(step, None) or self._thread.submit(self._make_batch, step)
        self._ahead = {step + 1: self._thread.submit(self._make_batch, step + 1)}
        return ready.result()
