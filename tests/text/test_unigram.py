"""The background distribution: counted by hand, drawn as counted, the same for the same seed."""

from pathlib import Path

import numpy as np
import pytest
from measured_documents import write_data

from pipeline.errors import InputError
from pipeline.text.tokenized_data import TokenizedData
from pipeline.text.unigram import UnigramDistribution


def test_training_tokens_are_counted_without_eos(tmp_path: Path) -> None:
    data = TokenizedData.open(write_data(tmp_path, train_token_ids=[[5, 6, 0, 5, 0], [47, 5, 0]]))
    unigram = UnigramDistribution.of_training_tokens(data)
    assert len(unigram.counts_V) == 48
    assert {token: int(unigram.counts_V[token]) for token in np.flatnonzero(unigram.counts_V)} == {
        5: 3,
        6: 1,
        47: 1,
    }


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
