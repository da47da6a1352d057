"""A stream of documents through a tokenizer, a batch at a time."""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from pipeline.text.documents import Document
from pipeline.text.split import Part
from pipeline.text.tokenizer import DocumentTokenizer

_DOCUMENTS_PER_BATCH = 512


def encode_documents(
    assigned: Iterable[tuple[Part, Document]], tokenizer: DocumentTokenizer
) -> Iterator[tuple[Part, Document, np.ndarray]]:
    """Each document with its token IDs (int32, without EOS), in order.

    Encoded in batches, which the tokenizer spreads over the cores; up to a batch is read ahead.
    """
    remaining = iter(assigned)
    while batch := list(islice(remaining, _DOCUMENTS_PER_BATCH)):
        encoded = tokenizer.encode([document.text for _, document in batch])
        for (part, document), token_ids in zip(batch, encoded, strict=True):
            yield part, document, token_ids


def first_characters(texts: Iterable[str], num_characters: int) -> Iterator[str]:
    """The first of `texts`, as many whole ones as reach `num_characters`."""
    for text in texts:
        yield text
        num_characters -= len(text)
        if num_characters <= 0:
            return
