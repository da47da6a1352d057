"""How often each token occurs in the training text, from the tokenized data that results were measured with.

Shapes: V vocabulary.
"""

from pathlib import Path

import numpy as np

from pipeline.errors import InputError
from pipeline.results.folder import read_made_by
from pipeline.text.manifest import MANIFEST_FILE
from pipeline.text.tokenized_data import TokenizedData
from pipeline.text.unigram import UnigramDistribution


def training_token_counts(results: Path, data: Path | None) -> np.ndarray | None:
    """Occurrences of each token ID among the training tokens: int64 [V]; None where the data is not at hand.

    Args:
        results: a results folder with `loss_differences`.
        data: the folder of tokenize_c4.py that was measured; where None, `data` beside the results if
            tokenized data is there.

    Raises:
        InputError: `data` holds no tokenized data, no training tokens, or is not what was measured.
    """
    beside = results.parent / "data"
    if data is None and not (beside / MANIFEST_FILE).is_file():  # a table made of the text may lie there
        return None
    tokenized = TokenizedData.open(data or beside)
    for model, made_by in read_made_by(results, "loss_differences").items():
        if made_by["inputs"].get("evaluation_documents") != tokenized.evaluation_sha256:
            raise InputError(
                f"loss_differences of {model} in {results} were not measured on the evaluation documents of"
                f" {tokenized.folder}: their SHA-256 differs; name the folder that they were with --data"
            )
    return UnigramDistribution.of_training_tokens(tokenized).counts_V
