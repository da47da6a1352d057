"""Which tokens, at which position IDs, each step trains on: a pure function of the seed and the step.

So a resumed run needs no reader state, and any number of ranks sees the same global batches. Dimension
letters: B sequences of one step over all ranks, S = train_context_length tokens, N places of an epoch.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Generic, Self, TypeVar

import numpy as np
import torch

from pipeline.cli import InputError
from pipeline.text.folder import TokenizedData, read_manifest, refuse_damage
from pipeline.training.config import PretrainConfig
from pipeline.training.positions import PositionScheme, position_scheme


def refuse_damaged_tokens(data: TokenizedData, rank: int = 0, num_ranks: int = 1) -> None:
    """Compare the SHA-256 of the training files: what is recorded of a run must be true of it.

    Each of the `num_ranks` processes reads its share of them; an InputError names a damaged one.
    """
    manifest = read_manifest(data.folder)
    assert manifest is not None
    names = [path.relative_to(data.folder).as_posix() for path in data.train_paths][rank::num_ranks]
    files = {name: manifest["files"][name] for name in names}
    refuse_damage(data.folder, {**manifest, "files": files}, verify=True)


Batch = TypeVar("Batch")


class Prefetch(Generic[Batch]):
    """Calls `make_batch(step)`, a pure function, one step ahead, while the device computes."""

    def __init__(self, make_batch: Callable[[int], Batch]) -> None:
        self._make_batch = make_batch
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._ahead: dict[int, Future[Batch]] = {}

    def __call__(self, step: int) -> Batch:
        """The batch of `step`; that of the step after it is begun."""
        ready = self._ahead.pop(step, None) or self._thread.submit(self._make_batch, step)
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

    def __init__(
        self,
        paths: Sequence[Path],
        token_dtype: np.dtype,
        *,
        train_context_length: int,
        batch_size: int,
        scheme: PositionScheme,
        seed: int,
        vocabulary_size: int | None = None,
    ) -> None:
        """Map the files, raw arrays of token IDs; with `vocabulary_size`, tokens beyond it are refused."""
        self._train_context_length = train_context_length
        self._batch_size = batch_size
        self._scheme = scheme
        self._seed = seed
        self._paths = list(paths)
        self._vocabulary_size = vocabulary_size
        self._files = []
        for path in paths:
            # A map that keeps no file open: C4 has thousands, and a process may often open 1,024.
            num_tokens = path.stat().st_size // token_dtype.itemsize
            dtype = getattr(torch, token_dtype.name)
            tokens = torch.from_file(str(path), shared=False, size=num_tokens, dtype=dtype).numpy()
            whole = num_tokens - num_tokens % train_context_length
            self._files.append(tokens[:whole].reshape(-1, train_context_length))
        lengths = [len(file) for file in self._files]
        self._starts = np.cumsum([0, *lengths])  # index of each file's first sequence, and the end
        self.steps_per_epoch = sum(lengths) // batch_size
        if self.steps_per_epoch == 0:
            raise InputError(
                f"the training data holds {sum(lengths)} sequences of {train_context_length} tokens, but one"
                f" step takes {batch_size}; tokenize more text or lower the batch"
            )
        self._order_of_epoch = lru_cache(maxsize=1)(
            lambda epoch: np.random.default_rng([seed, _ORDER, epoch]).permutation(sum(lengths))
        )

    @classmethod
    def from_config(cls, config: PretrainConfig, data: TokenizedData) -> Self:
        """The batches of the run that `config` describes, from its tokenized data."""
        scheme = position_scheme(config.position_scheme, config.position_target_length)
        return cls(
            data.train_paths,
            data.token_dtype,
            train_context_length=config.sequence_length,
            batch_size=config.global_train_batch_size,
            scheme=scheme,
            seed=config.seed,
            vocabulary_size=data.vocabulary_size,
        )

    def sequence_indices(self, step: int) -> np.ndarray:
        """Indices [B] of the sequences of `step`, counted from 1. An epoch's incomplete batch is left out."""
        epoch, batch_index = divmod(step - 1, self.steps_per_epoch)
        first = batch_index * self._batch_size
        return self._order_of_epoch(epoch)[first : first + self._batch_size]

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(token_ids_BS, position_ids_BS) of `step`, int64; tokens beyond the vocabulary are refused."""
        indices_B = self.sequence_indices(step)
        files_B = np.searchsorted(self._starts, indices_B, side="right") - 1
        token_ids_BS = np.empty((self._batch_size, self._train_context_length), dtype=np.int64)
        for row, (file, index) in enumerate(zip(files_B, indices_B, strict=True)):
            token_ids_BS[row] = self._files[file][index - self._starts[file]]
        # Refused here: in the model it is an index error, or on a GPU the end of its process.
        largest_B = token_ids_BS.max(axis=1)
        row = int(largest_B.argmax())
        if self._vocabulary_size is not None and largest_B[row] >= self._vocabulary_size:
            raise InputError(
                f"{self._paths[files_B[row]]} holds the token {largest_B[row]}, and its manifest a vocabulary"
                f" of {self._vocabulary_size}: they do not belong together; remove the manifest, and run"
                " pipeline/tokenize_c4.py again as it was run for this folder"
            )
        generator = np.random.default_rng([self._seed, _POSITIONS, step])
        return token_ids_BS, self._scheme(self._batch_size, self._train_context_length, generator)
