"""Chunks of the training tokens, for what is learned of a model and not measured.

Shapes: L chunk.
"""

import numpy as np

from pipeline.errors import InputError
from pipeline.text.tokenized_data import TokenizedData


def training_chunks(data: TokenizedData, chunk_length: int, num_chunks: int) -> list[np.ndarray]:
    """`num_chunks` chunks of consecutive training tokens, spread evenly over them: int64 [L] each.

    They do not overlap, and are the same for the same data. EOS between documents may stand in them.

    Raises:
        InputError: the files do not hold so many.
    """
    files = [
        np.memmap(path, dtype=data.token_dtype.newbyteorder("<"), mode="r")
        for path in data.train_paths
        if path.stat().st_size
    ]
    places = [
        (file, start) for file in files for start in range(0, len(file) - chunk_length + 1, chunk_length)
    ]
    if len(places) < num_chunks:
        raise InputError(
            f"{data.folder} has {len(places)} chunks of {chunk_length} training tokens, and {num_chunks} are"
            " to be learned from; tokenize more training text, or learn from fewer (--learning-chunks)"
        )
    taken = np.arange(num_chunks) * len(places) // num_chunks
    chosen = [places[place] for place in taken]
    return [np.array(file[start : start + chunk_length], dtype=np.int64) for file, start in chosen]
