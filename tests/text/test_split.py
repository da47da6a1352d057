"""The split: by content, disjoint, and the same whatever else is read."""

from random import Random

from pipeline.text.sources import Document
from pipeline.text.split import SeenDocuments, Split, is_evaluation_document

IDS = [Document.from_record({"text": f"document {number}"}).document_id for number in range(1000)]


def kinds(split: Split, ids: list[str]) -> dict[str, str]:
    return {document_id: split.kind_of(document_id) for document_id in ids}


def test_the_decision_is_fixed_by_seed_and_content() -> None:
    # sha256("0:00000000000000aa") begins with 0381, sha256("1:00000000000000aa") with e750
    assert is_evaluation_document("00000000000000aa", 0.5, seed=0) is True
    assert is_evaluation_document("00000000000000aa", 0.5, seed=1) is False
    assert not is_evaluation_document("00000000000000aa", 0.0, seed=0)
    assert is_evaluation_document("00000000000000aa", 1.0, seed=0)


def test_parts_are_of_the_right_size_and_blind_to_order() -> None:
    forward = kinds(Split(0.2, seed=3), IDS)
    assert forward == kinds(Split(0.2, seed=3), IDS[::-1])
    assert set(forward.values()) == {"train", "evaluation"}
    assert 150 < list(forward.values()).count("evaluation") < 250
    assert kinds(Split(0.2, seed=4), IDS) != forward


def test_repetitions_and_documents_of_an_evaluation_source_are_left_out() -> None:
    split = Split(0.0, evaluation_ids=frozenset(IDS[:1]))
    found = [split.kind_of(IDS[number]) for number in (0, 1, 2, 1, 0)]
    assert found == ["in_evaluation_source", "train", "train", "duplicate", "duplicate"]


def test_what_was_seen_is_exact_across_merges() -> None:
    seen = SeenDocuments(documents_per_merge=7)
    generator = Random(0)
    known: set[str] = set()
    for _ in range(2000):
        document_id = f"{generator.randrange(2**64) // 2**55 * 2**55 + 2**55 - 1:016x}"  # one of 512, large
        assert seen.is_new(document_id) == (document_id not in known)
        known.add(document_id)
    assert len(known) > 450


def test_more_than_can_be_remembered_is_forgotten_at_once() -> None:
    seen = SeenDocuments(max_documents=4, documents_per_merge=2)
    ids = [f"{number:016x}" for number in range(6)]
    assert [seen.is_new(document_id) for document_id in ids[:4]] == [True] * 4
    assert [seen.is_new(document_id) for document_id in ids[:4]] == [False] * 4
    # the fifth does not fit: it starts another run, in which the first four are new again
    assert [seen.is_new(document_id) for document_id in (ids[4], ids[4], ids[0])] == [True, False, True]
