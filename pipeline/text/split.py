"""Which documents train and which evaluate: decided by content, so that no text is ever in both."""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

import numpy as np

Kind = Literal["train", "evaluation", "duplicate", "in_evaluation_source"]
"""What becomes of a document; the last two are left out, and counted by these names."""

MAX_REMEMBERED_DOCUMENTS = 1 << 25
"""33.5 million, as many as 94 of C4's 1,024 files hold: 256 MiB, twice that while they are merged."""
_DOCUMENTS_PER_MERGE = 1 << 18


def is_evaluation_document(document_id: str, evaluation_fraction: float, seed: int) -> bool:
    """Whether a document evaluates: a function of seed and content alone, whatever else is in the source."""
    digest = sha256(f"{seed}:{document_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < evaluation_fraction * 2**64


class SeenDocuments:
    """The IDs met so far, in bounded memory: 8 bytes each, and all forgotten once there are too many.

    So repetitions are found within each run of `max_documents` distinct documents, exactly.
    """

    def __init__(
        self, max_documents: int = MAX_REMEMBERED_DOCUMENTS, documents_per_merge: int = _DOCUMENTS_PER_MERGE
    ) -> None:
        self._max_documents, self._documents_per_merge = max_documents, documents_per_merge
        self._older = np.empty(0, dtype=np.uint64)  # sorted
        self._recent: set[int] = set()

    def is_new(self, document_id: str) -> bool:
        """Whether this ID comes for the first time; it is remembered."""
        number = int(document_id, 16)
        place = self._older.searchsorted(np.uint64(number))
        if number in self._recent or (place < len(self._older) and int(self._older[place]) == number):
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


@dataclass
class Split:
    """Sorts the documents of a source, one after another from its start."""

    evaluation_fraction: float
    """Share of documents that evaluate; 0 where they come from a source of their own, 1 of that source."""
    seed: int = 0
    evaluation_ids: frozenset[str] = frozenset()
    """Documents that evaluate already: left out of training."""
    _seen: SeenDocuments = field(default_factory=SeenDocuments)

    def kind_of(self, document_id: str) -> Kind:
        """What becomes of the next document."""
        if not self._seen.is_new(document_id):
            return "duplicate"
        if document_id in self.evaluation_ids:
            return "in_evaluation_source"
        is_evaluation = is_evaluation_document(document_id, self.evaluation_fraction, self.seed)
        return "evaluation" if is_evaluation else "train"
