"""Which documents train and which evaluate: decided by content, so that no text is ever in both."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from pipeline.text.documents import Document

Part = Literal["train", "evaluation"]


def is_evaluation_document(document_id: str, evaluation_fraction: float, seed: int) -> bool:
    """Whether a document evaluates: a function of seed and content alone, whatever else is in the source."""
    digest = sha256(f"{seed}:{document_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < evaluation_fraction * 2**64


def distinct_documents(documents: Iterable[Document], tally: Counter[str]) -> Iterator[Document]:
    """`documents` without exact repetitions, which `tally` counts as `duplicate`."""
    seen: set[int] = set()
    for document in documents:
        number = int(document.document_id, 16)  # a third of the memory of the 16 digits
        if number in seen:
            tally["duplicate"] += 1
            continue
        seen.add(number)
        yield document


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
    max_evaluation_documents: int | None = None

    def assign(self, documents: Iterable[Document], tally: Counter[str]) -> Iterator[tuple[Part, Document]]:
        """Each distinct document with its part, until there are `max_documents` of training.

        `tally` counts `duplicate`, `in_evaluation_source` (left out of training) and
        `beyond_max_evaluation_documents` (left out of both: they must never train).
        """
        num_documents: Counter[Part] = Counter()
        for document in distinct_documents(documents, tally):
            if document.document_id in self.evaluation_ids:
                tally["in_evaluation_source"] += 1
                continue
            evaluates = is_evaluation_document(document.document_id, self.evaluation_fraction, self.seed)
            part: Part = "evaluation" if evaluates else "train"
            if evaluates and num_documents[part] == self.max_evaluation_documents:
                tally["beyond_max_evaluation_documents"] += 1
                continue
            num_documents[part] += 1
            yield part, document
            if num_documents["train"] == self.max_documents:
                return
