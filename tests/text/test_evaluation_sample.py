"""Which evaluation documents are kept: those with the smallest IDs, in whatever order they come."""

from itertools import permutations

import numpy as np

from pipeline.text.folder import EvaluationDocument, EvaluationSample


def document(number: int) -> EvaluationDocument:
    return EvaluationDocument(f"{number:016x}", np.array([number % 1000], dtype=np.int32))


def test_the_smallest_ids_are_kept_in_every_order() -> None:
    for order in permutations([3, 1, 4, 0xFFFF_FFFF_FFFF_FFFF, 9]):
        sample = EvaluationSample(3)
        assert all([sample.add(document(number)) for number in order])
        assert {kept.token_ids[0] for kept in sample.documents()} == {1, 3, 4}
        assert sample.num_left_out == 2


def test_a_document_that_is_there_already_is_not_taken_twice() -> None:
    sample = EvaluationSample(3)
    assert [sample.add(document(number)) for number in (5, 5, 6)] == [True, False, True]
    assert (len(sample.documents()), sample.num_left_out) == (2, 0)
