"""Reading what tokenize_c4 left, refusing what is not whole; tasks, and the swap distribution."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from measured_documents import flip, write_data

from sparsity_length.cli import InputError
from sparsity_length.results.files import describe_files
from sparsity_length.text.chunks import chunks_of, long_enough_documents
from sparsity_length.text.folder import (
    EVALUATION_FILE,
    EvaluationDocument,
    TokenizedData,
    training_token_counts,
)

PARTS = [[1, 2, 0], [3, 0]]


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_evaluation_documents_and_a_tokenizer_of_another_content_are_refused(tmp_path: Path) -> None:
    (write_data(tmp_path, train_token_ids=PARTS) / "tokenizer.json").write_text("{}")
    files = json.loads((tmp_path / "manifest.json").read_text())["files"]
    change_manifest(tmp_path, files=files | describe_files(tmp_path, [tmp_path / "tokenizer.json"]))
    data = TokenizedData.open(tmp_path)
    flip(tmp_path / EVALUATION_FILE)
    with pytest.raises(InputError, match="has not the SHA-256 of its manifest"):
        data.evaluation_documents()
    flip(tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match="tokenizer.json has not the SHA-256 of its manifest"):
        data.tokenizer()


def test_no_document_is_its_own_null_or_swap() -> None:
    """Four documents of 4 to 9 tokens in chunks of 4: each with the next three, in turn, and no fewer."""
    documents = [EvaluationDocument(f"{size:016x}", np.arange(size) + 10 * size) for size in (9, 4, 3, 8, 5)]
    data = SimpleNamespace(evaluation_documents=lambda: documents, folder="here")
    usable = long_enough_documents(data, 4, None, 3)
    assert [len(document.token_ids) for document in usable] == [9, 4, 8, 5]
    for most, num_others in ((None, 4), (3, 3), (1, 1), (2, 3)):
        with pytest.raises(InputError, match=f"{num_others + 1} are needed"):
            long_enough_documents(data, 4, most, num_others)
    first, second = chunks_of(usable, 2, 4, None, 3)
    assert first.token_ids_L.tolist() == [80, 81, 82, 83] and (first.start, second.start) == (0, 4)
    assert second.token_ids_L.tolist() == [84, 85, 86, 87]
    assert first.other_token_ids_NL[:, 0].tolist() == [50, 90, 40]
    assert second.other_token_ids_NL[:, 0].tolist() == [50, 94, 40]
    assert len([*chunks_of(usable, 0, 4, 1)]) == 1


def test_training_tokens_are_counted(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "some", train_token_ids=[[5, 6, 0, 5, 0], [47, 5, 0]])
    counted_V = training_token_counts(TokenizedData.open(folder))
    found = np.flatnonzero(counted_V)
    assert (found.tolist(), counted_V[found].tolist()) == ([5, 6, 47], [3, 1, 1])
