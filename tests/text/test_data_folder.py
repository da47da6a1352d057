"""Reading what tokenize_c4 left, refusing what is not whole; tasks, and the background distribution."""

import json
from pathlib import Path

import numpy as np
import pytest
from measured_documents import flip, write_data

from pipeline.cli import InputError
from pipeline.results.files import Task, describe_files
from pipeline.text.folder import (
    EVALUATION_FILE,
    TokenizedData,
    training_token_counts,
)
from pipeline.training.data import refuse_damaged_tokens

PARTS = [[1, 2, 0], [3, 0]]


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_training_files_are_read_by_their_content_each_by_one_rank(tmp_path: Path) -> None:
    data = TokenizedData.open(write_data(tmp_path, train_token_ids=PARTS))
    refuse_damaged_tokens(data)
    flip(tmp_path / "train/part-00001.npy")
    refuse_damaged_tokens(data, rank=0, num_ranks=2)
    for rank, num_ranks in ((0, 1), (1, 2)):
        with pytest.raises(InputError, match=r"part-00001.npy has not the SHA-256"):
            refuse_damaged_tokens(data, rank, num_ranks)


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
        TokenizedData.open(tmp_path)


def test_tasks_one_after_another_are_all() -> None:
    assert list(Task(0, 2).run_of("abcde")) == ["a", "b"] and Task(1, 2).run_of("abcde") == "cde"
    for count, num_tasks in ((7, 3), (128, 7), (1024, 1000), (1024, 128)):
        parts = [Task(index, num_tasks).run_of(range(count)) for index in range(num_tasks)]
        assert [place for part in parts for place in part] == list(range(count)), num_tasks
        assert {len(part) for part in parts} <= {count // num_tasks, count // num_tasks + 1}


def test_training_tokens_are_counted(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "some", train_token_ids=[[5, 6, 0, 5, 0], [47, 5, 0]])
    counted_V = training_token_counts(TokenizedData.open(folder))
    found = np.flatnonzero(counted_V)
    assert (found.tolist(), counted_V[found].tolist()) == ([5, 6, 47], [3, 1, 1])
