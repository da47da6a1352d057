"""Training tokens in OLMo's memory-map format: raw little-endian integers without a header."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from pipeline.results.files import whole_or_absent

_BUFFER_BYTES = 1 << 20


class PackedShardWriter:
    """Writes documents one after another, each followed by EOS, into part-00000.npy, part-00001.npy, etc.

    A part ends with the document that fills it, so that no document is divided. Documents [5, 6] and
    [7] with EOS 0 are the integers 5 6 0 7 0. Tokens go to the disk as they come; a part gets its name
    once it is whole, and leaving the context after an error removes the one begun.
    """

    def __init__(
        self,
        folder: Path,
        token_dtype: np.dtype,
        eos_token_id: int,
        tokens_per_part: int,
        whole_parts: Sequence[Path] = (),
    ) -> None:
        """Begin behind `whole_parts`, which an interrupted run has written."""
        self._folder = folder
        self._little_endian_dtype = token_dtype.newbyteorder("<")
        self._eos = np.array([eos_token_id], dtype=self._little_endian_dtype).tobytes()
        self._tokens_per_part = tokens_per_part
        self._part = ExitStack()
        self._file: BinaryIO | None = None
        self._num_tokens_in_part = 0
        self.num_tokens = sum(path.stat().st_size for path in whole_parts) // token_dtype.itemsize
        """Tokens taken so far, EOS included."""
        self.paths = list(whole_parts)
        """The parts begun so far; all are whole once the context is left."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file = None
        self._part.__exit__(kind, error, trace)

    @property
    def whole_paths(self) -> list[Path]:
        """The parts that have their name."""
        return self.paths if self._file is None else self.paths[:-1]

    def add(self, token_ids: np.ndarray) -> None:
        """Take one document's token IDs, without EOS; ends a part when that is full."""
        file = self._file or self._begin_part()
        file.write(token_ids.astype(self._little_endian_dtype, copy=False).tobytes())
        file.write(self._eos)
        self.num_tokens += len(token_ids) + 1
        self._num_tokens_in_part += len(token_ids) + 1
        if self._num_tokens_in_part >= self._tokens_per_part:
            self._file = None
            self._part.close()

    def _begin_part(self) -> BinaryIO:
        path = self._folder / f"part-{len(self.paths):05d}.npy"
        temporary = self._part.enter_context(whole_or_absent(path))
        self._file = self._part.enter_context(temporary.open("wb", buffering=_BUFFER_BYTES))
        self.paths.append(path)
        self._num_tokens_in_part = 0
        return self._file
