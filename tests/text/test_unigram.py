"""The background distribution: counted by hand, drawn as counted, the same for the same seed."""

import json
from pathlib import Path

import numpy as np
import pytest
from measured_documents import write_data

from pipeline.cli import InputError
from pipeline.results.versions import describe_files
from pipeline.text import folder as token_counts
from pipeline.text.folder import TokenizedData, UnigramDistribution, write_token_counts


def test_training_tokens_are_counted_without_eos(tmp_path: Path) -> None:
    data = TokenizedData.open(write_data(tmp_path, train_token_ids=[[5, 6, 0, 5, 0], [47, 5, 0]]))
    unigram = UnigramDistribution.of_training_tokens(data)
    assert len(unigram.counts_V) == 48
    assert {token: int(unigram.counts_V[token]) for token in np.flatnonzero(unigram.counts_V)} == {
        5: 3,
        6: 1,
        47: 1,
    }


def test_counts_are_those_of_tokenization(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_data(tmp_path, train_token_ids=[[5, 6, 0, 5, 0], [47, 5, 0]])
    counted = UnigramDistribution.of_training_tokens(TokenizedData.open(folder))
    path = write_token_counts(folder, counted.counts_V)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] |= describe_files(folder, [path])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(token_counts, "count_tokens", None)  # nothing is counted again
    data = TokenizedData.open(folder)
    read = UnigramDistribution.of_training_tokens(data)
    assert read.counts_V.tolist() == counted.counts_V.tolist() and read.counts_V.dtype == np.int64
    # Results that say which distribution they drew from say the same as before.
    assert read.sha256 == counted.sha256 == data.token_counts_sha256
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(InputError, match=r"train_token_counts\.bin is not the counts of 48 tokens"):
        UnigramDistribution.of_training_tokens(TokenizedData.open(folder))


def test_folders_of_older_versions_are_counted_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pipeline")
    data = TokenizedData.open(write_data(tmp_path, train_token_ids=[[5, 6, 0]]))
    UnigramDistribution.of_training_tokens(data)
    assert "has no train_token_counts.bin, as an older version wrote it: counting its 3" in caplog.text


def test_a_token_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    data = TokenizedData.open(write_data(tmp_path, train_token_ids=[[5, 48, 0]]))
    with pytest.raises(InputError, match=r"part-00000\.npy has the token 48, and its manifest"):
        UnigramDistribution.of_training_tokens(data)


def test_no_training_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no training tokens .* or say --intervention remove"):
        UnigramDistribution.of_training_tokens(TokenizedData.open(write_data(tmp_path)))


def test_draws_are_seeded_and_follow_the_counts() -> None:
    unigram = UnigramDistribution(np.array([2, 0, 1]))
    drawn = unigram.draw(9000, [4])
    assert (drawn == unigram.draw(9000, [4])).all() and (drawn != unigram.draw(9000, [5])).any()
    counted = np.bincount(drawn, minlength=3)
    assert counted[1] == 0 and abs(counted[0] - 6000) < 5 * np.sqrt(9000 * 2 / 9)


def test_the_fingerprint_is_that_of_the_counts() -> None:
    fingerprints = {UnigramDistribution(np.array(counts)).sha256 for counts in ([2, 1], [1, 2], [2, 1])}
    assert len(fingerprints) == 2
