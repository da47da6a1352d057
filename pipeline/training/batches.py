"""Which tokens, at which position IDs, each step trains on: a pure function of the seed and the step.

So a resumed run needs no reader state, and any number of ranks sees the same global batches.
Dimension letters: B sequences of one step over all ranks, S = train_context_length tokens.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np
import torch

from pipeline.errors import InputError
from pipeline.positions.schemes import PositionScheme, position_scheme
from pipeline.text.tokenized_data import TokenizedData
from pipeline.training.configuration import PretrainConfig
from pipeline.training.order import EpochOrder

_ORDER, _POSITIONS = 0, 1  # separate random streams: another position scheme leaves the order as it is


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
        """Map the files.

        Args:
            paths: raw arrays of token IDs.
            token_dtype: their unsigned integer type.
            train_context_length: S, tokens of one sequence.
            batch_size: B, sequences of one step over all ranks.
            scheme: draws the position IDs.
            seed: decides order and position IDs.
            vocabulary_size: tokens are below it, which each batch is checked for; None: any will do.

        Raises:
            InputError: the files hold fewer sequences than one step needs.
        """
        arrays = [_map_tokens(path, token_dtype) for path in paths]
        lengths = [len(array) // train_context_length for array in arrays]
        self._files = [
            array[: length * train_context_length].reshape(length, train_context_length)
            for array, length in zip(arrays, lengths, strict=True)
        ]
        self._starts = np.concatenate(
            ([0], np.cumsum(lengths))
        )  # index of each file's first sequence, and the end
        self._train_context_length, self._batch_size = train_context_length, batch_size
        self._scheme, self._seed = scheme, seed
        self._paths, self._vocabulary_size = list(paths), vocabulary_size
        self.steps_per_epoch = int(sum(lengths)) // batch_size
        if self.steps_per_epoch == 0:
            raise InputError(
                f"the training data holds {sum(lengths)} sequences of {train_context_length} tokens, but one"
                f" step takes {batch_size}; tokenize more text or lower the batch"
            )
        self._order_of_epoch = lru_cache(maxsize=1)(self._order)

    @classmethod
    def from_config(cls, config: PretrainConfig, data: TokenizedData) -> Self:
        """The batches of the run that `config` describes, from its tokenized data."""
        return cls(
            data.train_paths,
            data.token_dtype,
            train_context_length=config.sequence_length,
            batch_size=config.global_train_batch_size,
            scheme=position_scheme(config.position_scheme, config.position_target_length),
            seed=config.seed,
            vocabulary_size=data.vocabulary_size,
        )

    def _order(self, epoch: int) -> EpochOrder:
        return EpochOrder(int(self._starts[-1]), [self._seed, _ORDER, epoch])

    def sequence_indices(self, step: int) -> np.ndarray:
        """Indices [B] of the sequences of `step`, counted from 1. An epoch's incomplete batch is left out."""
        epoch, batch_index = divmod(step - 1, self.steps_per_epoch)
        first = batch_index * self._batch_size
        return self._order_of_epoch(epoch).sequences_at(np.arange(first, first + self._batch_size))

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(token_ids_BS, position_ids_BS) of `step`, both int64.

        Raises:
            InputError: one of the tokens is none of the vocabulary.
        """
        indices_B = self.sequence_indices(step)
        files_B = np.searchsorted(self._starts, indices_B, side="right") - 1
        token_ids_BS = np.empty((self._batch_size, self._train_context_length), dtype=np.int64)
        for row, (file, index) in enumerate(zip(files_B, indices_B, strict=True)):
            token_ids_BS[row] = self._files[file][index - self._starts[file]]
        self._refuse_foreign_tokens(token_ids_BS, files_B)
        generator = np.random.default_rng([self._seed, _POSITIONS, step])
        return token_ids_BS, self._scheme(self._batch_size, self._train_context_length, generator)

    def _refuse_foreign_tokens(self, token_ids_BS: np.ndarray, files_B: np.ndarray) -> None:
        """Here, and not in the model, where they are an index error, or on a GPU the end of its process."""
        largest_B = token_ids_BS.max(axis=1)
        row = int(largest_B.argmax())
        if self._vocabulary_size is not None and largest_B[row] >= self._vocabulary_size:
            raise InputError(
                f"{self._paths[files_B[row]]} holds the token {largest_B[row]}, and its manifest a vocabulary"
                f" of {self._vocabulary_size}: they do not belong together; run pipeline/tokenize_c4.py again"
                " as it was run for this folder, with --verify"
            )


def _map_tokens(path: Path, token_dtype: np.dtype) -> np.ndarray:
    """The file as a memory map that keeps no file open: C4 has thousands, a process may often open 1,024."""
    num_tokens = path.stat().st_size // token_dtype.itemsize
    return torch.from_file(
        str(path), shared=False, size=num_tokens, dtype=getattr(torch, token_dtype.name)
    ).numpy()
