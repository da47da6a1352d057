"""Training tokens in OLMo's memory-map format: raw little-endian integers without a header."""

from pathlib import Path

import numpy as np

from pipeline.results.files import write_atomically


class PackedShardWriter:
    """Writes documents one after another, each followed by EOS, into part-00000.npy, part-00001.npy, etc.

    A part ends with the document that fills it, so that no document is divided. Documents [5, 6] and
    [7] with EOS 0 are the integers 5 6 0 7 0.
    """

    def __init__(self, folder: Path, token_dtype: np.dtype, eos_token_id: int, tokens_per_part: int) -> None:
        self._folder = folder
        self._little_endian_dtype = token_dtype.newbyteorder("<")
        self._eos_token_id = eos_token_id
        self._tokens_per_part = tokens_per_part
        self._pending: list[np.ndarray] = []
        self._num_pending_tokens = 0
        self.num_tokens = 0
        """Tokens taken so far, EOS included."""
        self.paths: list[Path] = []
        """The parts written so far."""

    def add(self, token_ids: np.ndarray) -> None:
        """Take one document's token IDs, without EOS; writes a part when that is full."""
        document = np.append(token_ids, self._eos_token_id).astype(self._little_endian_dtype)
        self._pending.append(document)
        self._num_pending_tokens += len(document)
        self.num_tokens += len(document)
        if self._num_pending_tokens >= self._tokens_per_part:
            self._write_part()

    def close(self) -> None:
        """Write the tokens that are left as the last part."""
        if self._pending:
            self._write_part()

    def _write_part(self) -> None:
        path = self._folder / f"part-{len(self.paths):05d}.npy"
        write_atomically(
            path, lambda temporary: temporary.write_bytes(np.concatenate(self._pending).tobytes())
        )
        self.paths.append(path)
        self._pending, self._num_pending_tokens = [], 0
