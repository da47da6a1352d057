"""Texts in which a sign stands that nobody planted: their answers are ambiguous.

Signs are the vocabulary's rarest tokens, and yet stand in texts by chance, in a text twice as long twice as
often. Where such a token is another sign of the same question, no model can know which one counts.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.text.evaluation_documents import read_evaluation_documents
from pipeline.text.manifest import EVALUATION_FILE
from pipeline.text.planted_signs import read_planted


def texts_with_chance_signs(planted: Sequence[Path]) -> set[str]:
    """IDs of the documents that hold, beside the planted ones, another sign of the same number of signs.

    A second copy of a planted sign says the same, so it does not count. The signs of each number are those
    that some document plants: hundreds of documents plant all of them.

    Args:
        planted: data folders of plant_signs.py, made with the same signs.
    """
    texts = []
    signs: dict[int, set[int]] = defaultdict(set)
    for folder in planted:
        documents = {
            document.document_id: document.token_ids
            for document in read_evaluation_documents(folder / EVALUATION_FILE)
        }
        for row in read_planted(folder):
            tokens, places = documents[row["document_id"]], row["planted_positions"]
            own = set(tokens[places].tolist())
            signs[row["num_planted"]] |= own
            others = set(np.delete(tokens[: row["target_position"]], places).tolist())
            texts.append((row["document_id"], row["num_planted"], own, others))
    return {name for name, num_planted, own, others in texts if others & (signs[num_planted] - own)}
