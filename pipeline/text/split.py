"""Which documents train and which evaluate: decided by content, so that no text is ever in both."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Literal, Protocol, TypeVar

import numpy as np

Part = Literal["train", "evaluation"]

MAX_REMEMBERED_DOCUMENTS = 1 << 25
"""33.5 million, as many as 94 of C4's 1,024 files hold: 256 MiB, twice that while they are merged."""
_DOCUMENTS_PER_MERGE = 1 << 18


class Identified(Protocol):
    """Anything with a document's ID."""

    @property
    def document_id(self) -> str:
        """16 hex digits; see `Document`."""
        ...


AnyDocument = TypeVar("AnyDocument", bound=Identified)


def is_evaluation_document(document_id: str, evaluation_fraction: float, seed: int) -> bool:
    """Whether a document evaluates: a function of seed and content alone, whatever else is in the source."""
    digest = sha256(f"{seed}:{document_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < evaluation_fraction * 2**64


class SeenDocuments:
    """The IDs met so far, in bounded memory: 8 bytes each, and all forgotten once there are too many.

    So repetitions are found within each run of `max_documents` distinct documents, exactly.
    """

    def __init__(
        self,
        max_documents: int = MAX_REMEMBERED_DOCUMENTS,
        documents_per_merge: int = _DOCUMENTS_PER_MERGE,
    ) -> None:
        self._max_documents, self._documents_per_merge = max_documents, documents_per_merge
        self._older = np.empty(0, dtype=np.uint64)  # sorted
        self._recent: set[int] = set()

    def is_new(self, document_id: str) -> bool:
        """Whether this ID comes for the first time; it is remembered."""
        number = int(document_id, 16)
        if number in self._recent or self._is_older(number):
            return False
        if len(self._older) + len(self._recent) == self._max_documents:
            self._older, self._recent = self._older[:0].copy(), set()
        self._recent.add(number)
        if len(self._recent) == self._documents_per_merge:
            # A set takes ten times the memory of a sorted array, which is slow to add to.
            recent = np.sort(np.fromiter(self._recent, dtype=np.uint64))
            self._older = np.insert(self._older, self._older.searchsorted(recent), recent)
            self._recent = set()
        return True

    def _is_older(self, number: int) -> bool:
        if not len(self._older):
            return False
        index = self._older.searchsorted(np.uint64(number))
        return bool(index < len(self._older) and int(self._older[index]) == number)


def distinct_documents(documents: Iterable[AnyDocument], tally: Counter[str]) -> Iterator[AnyDocument]:
    """`documents` without exact repetitions, which `tally` counts as `duplicate`."""
    seen = SeenDocuments()
    for document in documents:
        if seen.is_new(document.document_id):
            yield document
        else:
            tally["duplicate"] += 1


@dataclass(frozen=True)
class Split:
    """How the documents of the training source are parted."""

    evaluation_fraction: float
    """Share of documents that evaluate; 0 where they come from a source of their own."""
    seed: int
    evaluation_ids: frozenset[str] = frozenset()
    """Documents that evaluate already: left out of training."""
    max_documents: int | None = None
    """Training documents at most."""

    @property
    def evaluates(self) -> Callable[[str], bool]:
        """Whether the document of an ID evaluates; may be asked in another process."""
        return partial(is_evaluation_document, evaluation_fraction=self.evaluation_fraction, seed=self.seed)

    def assign(
        self, documents: Iterable[AnyDocument], tally: Counter[str]
    ) -> Iterator[tuple[Part, AnyDocument]]:
        """Each distinct document with its part, until there are `max_documents` of training.

        `tally` counts `duplicate` and `in_evaluation_source` (left out of training).
        """
        num_train_documents = 0
        for document in distinct_documents(documents, tally):
            if document.document_id in self.evaluation_ids:
                tally["in_evaluation_source"] += 1
            elif is_evaluation_document(document.document_id, self.evaluation_fraction, self.seed):
                yield "evaluation", document
            else:
                yield "train", document
                num_train_documents += 1
                if num_train_documents == self.max_documents:
                    return
