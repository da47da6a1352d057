"""How often each token occurs among training tokens: counted once, when they are written.

Shapes: V vocabulary.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from pipeline.errors import InputError
from pipeline.results.files import write_atomically
from pipeline.results.provenance import sha256_of_files
from pipeline.text.manifest import TOKEN_COUNTS_FILE
from pipeline.text.tokenized_data import TokenizedData

logger = logging.getLogger("pipeline")
_DTYPE = np.dtype("<i8")
_TOKENS_AT_A_TIME = 1 << 22


def count_tokens(
    paths: Iterable[Path], token_dtype: np.dtype, vocabulary_size: int, eos_token_id: int
) -> np.ndarray:
    """Occurrences of each token but EOS, which no document holds inside: int64 [V].

    Raises:
        InputError: a token is none of the vocabulary.
    """
    counts_V = np.zeros(vocabulary_size, dtype=np.int64)
    for path in paths:
        if not path.stat().st_size:
            continue  # which cannot be mapped
        tokens = np.memmap(path, dtype=token_dtype.newbyteorder("<"), mode="r")
        for start in range(0, len(tokens), _TOKENS_AT_A_TIME):
            counts = np.bincount(tokens[start : start + _TOKENS_AT_A_TIME], minlength=vocabulary_size)
            if len(counts) > vocabulary_size:
                raise InputError(
                    f"{path} has the token {len(counts) - 1}, and its manifest a vocabulary of"
                    f" {vocabulary_size}: it is damaged, or another file"
                )
            counts_V += counts
    counts_V[eos_token_id] = 0
    return counts_V


def write_token_counts(folder: Path, counts_V: np.ndarray) -> Path:
    """Write the counts of a data folder; the path."""
    content = counts_V.astype(_DTYPE).tobytes()
    write_atomically(folder / TOKEN_COUNTS_FILE, lambda path: path.write_bytes(content))
    return folder / TOKEN_COUNTS_FILE


def training_token_counts(data: TokenizedData) -> np.ndarray:
    """The counts that tokenize_c4 left, or in a folder of an older version counted here: int64 [V].

    Raises:
        InputError: the file is not that of the manifest, or a token is none of the vocabulary.
    """
    if data.token_counts_sha256 is None:
        if data.train_paths:
            logger.info(
                "%s has no %s, as an older version wrote it: counting its %s training tokens",
                data.folder, TOKEN_COUNTS_FILE, f"{data.num_train_tokens:,}",
            )  # fmt: skip
        return count_tokens(data.train_paths, data.token_dtype, data.vocabulary_size, data.eos_token_id)
    path = data.folder / TOKEN_COUNTS_FILE
    counts_V = np.fromfile(path, dtype=_DTYPE).astype(np.int64)
    if sha256_of_files(path) != data.token_counts_sha256 or len(counts_V) != data.vocabulary_size:
        raise InputError(
            f"{path} is not the counts of {data.vocabulary_size} tokens that the manifest names: it is"
            " damaged, or another file; run tokenize_c4 again with the same flags and --verify"
        )
    return counts_V
