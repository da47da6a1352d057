"""Which documents train and which evaluate: decided by content, so that no text is ever in both."""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

Kind = Literal["train", "evaluation", "duplicate", "in_evaluation_source"]
"""What becomes of a document; the last two are left out, and counted by these names."""

MAX_REMEMBERED_DOCUMENTS = 1 << 23
"""8.4 million, as many as 23 of C4's 1,024 files hold: a set of them takes 0.5 GiB."""


def is_evaluation_document(document_id: str, evaluation_fraction: float, seed: int) -> bool:
    """Whether a document evaluates: a function of seed and content alone, whatever else is in the source."""
    digest = sha256(f"{seed}:{document_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < evaluation_fraction * 2**64


@dataclass
class Split:
    """Sorts the documents of a source, one after another from its start."""

    evaluation_fraction: float
    """Share of documents that evaluate; 0 where they come from a source of their own, 1 of that source."""
    seed: int = 0
    evaluation_ids: frozenset[str] = frozenset()
    """Documents that evaluate already: left out of training."""
    _seen: set[int] = field(default_factory=set)

    def kind_of(self, document_id: str) -> Kind:
        """What becomes of the next document."""
        number = int(document_id, 16)
        if number in self._seen:
            return "duplicate"
        if len(self._seen) == MAX_REMEMBERED_DOCUMENTS:
            self._seen.clear()
        self._seen.add(number)
        if document_id in self.evaluation_ids:
            return "in_evaluation_source"
        is_evaluation = is_evaluation_document(document_id, self.evaluation_fraction, self.seed)
        return "evaluation" if is_evaluation else "train"
