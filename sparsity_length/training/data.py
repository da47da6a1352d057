"""Which tokens, at which position IDs, each step trains on: a pure function of the seed and the step.

So a resumed run needs no reader state, and any number of ranks sees the same global batches. Dimension
letters: B sequences of one step over all ranks, S = train_context_length tokens, N places of an epoch.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import ConcatDataset

from sparsity_length.results.files import launched_process
from sparsity_length.text.folder import TokenizedData
from sparsity_length.training.config import PretrainConfig
from sparsity_length.training.positions import POSITION_SCHEMES
from sparsity_length.training.settings import require

Batch = TypeVar("Batch")


def refuse_damaged_tokens(data: TokenizedData) -> None:
    """Compare the SHA-256 of the training files: what is recorded of a run must be true of it.

    Each process of those that train together reads its share of them; an InputError names a damaged one.
    """
    process = launched_process()
    for path in data.train_paths[process.index :: process.num_tasks]:
        data.whole(path.relative_to(data.folder).as_posix())


def prefetched(make_batch: Callable[[int], Batch]) -> Callable[[int], Batch]:
    """A function that returns `make_batch(step)`, and has the next step's made while the device computes."""
    # One thread takes its tasks in order, so the batch asked for is the one in memory, or is made first.
    thread = ThreadPoolExecutor(max_workers=1)
    made = lru_cache(maxsize=2)(make_batch)

    def batch_of(step: int) -> Batch:
        batch = thread.submit(made, step)
        thread.submit(made, step + 1)
        return batch.result()

    return batch_of


class TrainingBatches:
    """The token files of OLMo's memory-map format, cut into sequences and shuffled anew each epoch.

    Within a file sequences are adjacent and documents run across their edges, as OLMo's MemMapDataset
    cuts them; a file's last tokens, too few for a sequence, are left out. Reading through MemMapDataset
    itself opens the file anew for each sequence.
    """

    def __init__(self, config: PretrainConfig, data: TokenizedData) -> None:
        self._config = config
        length = config.sequence_length
        self._sequences: ConcatDataset[Any] = ConcatDataset(
            [_sequences(path, data.token_dtype, length) for path in data.train_paths]
        )
        self.steps_per_epoch = len(self._sequences) // config.global_train_batch_size
        require(
            self.steps_per_epoch > 0,
            f"the training data holds {len(self._sequences)} sequences of {length} tokens, but one step"
            f" takes {config.global_train_batch_size}; tokenize more text or lower the batch",
        )

    def sequence_indices(self, step: int) -> np.ndarray:
        """Indices [B] of the sequences of `step`, counted from 1. An epoch's incomplete batch is left out."""
        batch_size = self._config.global_train_batch_size
        epoch, batch_index = divmod(step - 1, self.steps_per_epoch)
        order_N = _order_of_epoch(self._config.seed, epoch, len(self._sequences))
        return order_N[batch_index * batch_size :][:batch_size]

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(token_ids_BS, position_ids_BS) of `step`, int64."""
        config = self._config
        token_ids_BS = np.stack([self._sequences[index] for index in self.sequence_indices(step)])
        # Seeded by the step, not carried on: step 1000 is the same whether or not 999 ran in this process.
        # The 1 keeps its stream apart from the order's: another position scheme leaves the order as it is.
        generator = np.random.default_rng([config.seed, 1, step])
        draw = POSITION_SCHEMES[config.position_scheme]
        position_ids_BS = draw(
            config.global_train_batch_size, config.sequence_length, config.num_position_ids, generator
        )
        return token_ids_BS.astype(np.int64), position_ids_BS


def _sequences(path: Path, token_dtype: np.dtype, length: int) -> Any:
    """A file's sequences [N, S], by a map that keeps no file open: C4 has thousands of them."""
    num_tokens = path.stat().st_size // token_dtype.itemsize // length * length
    tokens = torch.from_file(str(path), size=num_tokens, dtype=getattr(torch, token_dtype.name))
    return tokens.numpy().reshape(-1, length)


# One epoch's order at a time: at 8 bytes per sequence, all of C4 in sequences of 512 tokens takes 2.4 GB.
@lru_cache(maxsize=1)
def _order_of_epoch(seed: int, epoch: int, num_sequences: int) -> np.ndarray:
    return np.random.default_rng([seed, 0, epoch]).permutation(num_sequences)
