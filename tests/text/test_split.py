"""The split: by content, disjoint, and the same whatever else is read."""

from collections import Counter
from random import Random

from pipeline.text.sources import Document
from pipeline.text.split import SeenDocuments, Split, distinct_documents, is_evaluation_document


def documents(*texts: str) -> list[Document]:
    return [Document.from_record({"text": text}) for text in texts]


def numbered(count: int) -> list[Document]:
    return documents(*(f"document {number}" for number in range(count)))


def parts(split: Split, given: list[Document]) -> tuple[dict[str, set[str]], dict[str, int]]:
    tally: Counter[str] = Counter()
    found: dict[str, set[str]] = {"train": set(), "evaluation": set()}
    for part, document in split.assign(given, tally):
        found[part].add(document.text)
    return found, dict(tally)


def test_the_decision_is_fixed_by_seed_and_content() -> None:
    # sha256("0:00000000000000aa") begins with 0381, sha256("1:00000000000000aa") with e750
    assert is_evaluation_document("00000000000000aa", 0.5, seed=0) is True
    assert is_evaluation_document("00000000000000aa", 0.5, seed=1) is False
    assert not is_evaluation_document("00000000000000aa", 0.0, seed=0)
    assert is_evaluation_document("00000000000000aa", 1.0, seed=0)


def test_parts_are_disjoint_of_the_right_size_and_blind_to_order() -> None:
    split = Split(evaluation_fraction=0.2, seed=3)
    forward, _ = parts(split, numbered(1000))
    backward, _ = parts(split, numbered(1000)[::-1])
    assert forward == backward
    assert not forward["train"] & forward["evaluation"]
    assert len(forward["train"] | forward["evaluation"]) == 1000
    assert 150 < len(forward["evaluation"]) < 250
    assert parts(Split(evaluation_fraction=0.2, seed=4), numbered(1000))[0] != forward


def test_repetitions_are_dropped_and_counted() -> None:
    tally: Counter[str] = Counter()
    found = distinct_documents(documents("a", "b", "a", "a"), tally)
    assert [document.text for document in found] == ["a", "b"]
    assert tally == {"duplicate": 2}


def test_documents_of_an_evaluation_source_never_train() -> None:
    (reserved,) = documents("a")
    split = Split(evaluation_fraction=0.0, seed=0, evaluation_ids=frozenset({reserved.document_id}))
    found, tally = parts(split, documents("a", "b", "c"))
    assert found == {"train": {"b", "c"}, "evaluation": set()}
    assert tally == {"in_evaluation_source": 1}


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


def test_reading_stops_with_the_last_training_document() -> None:
    given = iter(numbered(40))
    split = Split(evaluation_fraction=0.0, seed=0, max_documents=3)
    assert len(list(split.assign(given, Counter()))) == 3
    assert next(given).text == "document 3"
