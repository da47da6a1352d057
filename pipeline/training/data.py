"""Which tokens, at which position IDs, each step trains on: a pure function of the seed and the step.

So a resumed run needs no reader state, and any number of ranks sees the same global batches. Dimension
letters: B sequences of one step over all ranks, S = train_context_length tokens, N places of an epoch.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch

from pipeline.text.folder import TokenizedData, read_manifest, refuse_damage
from pipeline.training.config import PretrainConfig
from pipeline.training.positions import position_scheme
from pipeline.training.settings import require


def refuse_damaged_tokens(data: TokenizedData) -> None:
    """Compare the SHA-256 of the training files: what is recorded of a run must be true of it.

    Each process of those that train together reads its share of them; an InputError names a damaged one.
    """
    manifest = read_manifest(data.folder)
    assert manifest is not None
    # torchrun and accelerate both number the processes so.
    share = slice(int(os.environ.get("RANK", 0)), None, int(os.environ.get("WORLD_SIZE", 1)))
    names = [path.relative_to(data.folder).as_posix() for path in data.train_paths[share]]
    files = {name: manifest["files"][name] for name in names}
    refuse_damage(data.folder, {**manifest, "files": files}, verify=True)


Batch = TypeVar("Batch")


class Prefetch(Generic[Batch]):
    """Calls of `make_batch(step)`, a pure function, one step ahead, while the device computes."""

    def __init__(self, make_batch: Callable[[int], Batch]) -> None:
        self._make_batch = make_batch
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._ahead: dict[int, Future[Batch]] = {}

    def __call__(self, step: int) -> Batch:
        """The batch of `step`; that of the step after it is begun."""
        ready = self._ahead.pop(step, None) or self._thread.submit(self._make_batch, step)
        # A new dict drops what was begun for another step, as after a jump.
        self._ahead = {step + 1: self._thread.submit(self._make_batch, step + 1)}
        return ready.result()


# separate random streams: another position scheme leaves the order as it is
_ORDER = 0
_POSITIONS = 1


class TrainingBatches:
    """The token files of OLMo's memory-map format, cut into sequences and shuffled anew each epoch.

    Within a file sequences are adjacent and documents run across their edges, as OLMo's MemMapDataset
    cuts them; a file's last tokens, too few for a sequence, are left out. Reading through MemMapDataset
    itself opens the file anew for each sequence.
    """

    def __init__(self, config: PretrainConfig, data: TokenizedData) -> None:
        self._seed = config.seed
        self._length = config.sequence_length
        self._batch_size = config.global_train_batch_size
        self._scheme = position_scheme(config.position_scheme, config.position_target_length)
        self._files = [_sequences(path, data.token_dtype, self._length) for path in data.train_paths]
        # the index of each file's first sequence, and the end
        self._starts = np.cumsum([0, *(len(sequences_NS) for sequences_NS in self._files)])
        self.steps_per_epoch = int(self._starts[-1]) // self._batch_size
        require(
            self.steps_per_epoch > 0,
            f"the training data holds {self._starts[-1]} sequences of {self._length} tokens, but one step"
            f" takes {self._batch_size}; tokenize more text or lower the batch",
        )

    def sequence_indices(self, step: int) -> np.ndarray:
        """Indices [B] of the sequences of `step`, counted from 1. An epoch's incomplete batch is left out."""
        epoch, batch_index = divmod(step - 1, self.steps_per_epoch)
        first = batch_index * self._batch_size
        return _order_of_epoch(self._seed, epoch, int(self._starts[-1]))[first : first + self._batch_size]

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(token_ids_BS, position_ids_BS) of `step`, int64."""
        indices_B = self.sequence_indices(step)
        # With starts 0 3 5, sequence 4 is row 1 of the second file; from the right, files without
        # sequences are passed over.
        files_B = np.searchsorted(self._starts, indices_B, side="right") - 1
        token_ids_BS = np.empty((self._batch_size, self._length), dtype=np.int64)
        for row, (file, index) in enumerate(zip(files_B, indices_B, strict=True)):
            token_ids_BS[row] = self._files[file][index - self._starts[file]]
        # Seeded by the step, not carried on: step 1000 is the same whether or not 999 ran in this process.
        generator = np.random.default_rng([self._seed, _POSITIONS, step])
        return token_ids_BS, self._scheme(self._batch_size, self._length, generator)


def _sequences(path: Path, token_dtype: np.dtype, length: int) -> np.ndarray:
    """A file's sequences [N, S], by a map that keeps no file open: C4 has thousands of them."""
    num_tokens = path.stat().st_size // token_dtype.itemsize
    dtype = getattr(torch, token_dtype.name)
    tokens = torch.from_file(str(path), shared=False, size=num_tokens, dtype=dtype).numpy()
    return tokens[: num_tokens - num_tokens % length].reshape(-1, length)


# One epoch's order at a time: at 8 bytes a sequence, all of C4 in sequences of 512 tokens takes 2.4 GB.
@lru_cache(maxsize=1)
def _order_of_epoch(seed: int, epoch: int, num_sequences: int) -> np.ndarray:
    return np.random.default_rng([seed, _ORDER, epoch]).permutation(num_sequences)
