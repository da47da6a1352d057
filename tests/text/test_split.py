"""The split: by content, disjoint, and the same whatever else is read."""

from collections import Counter

from pipeline.text.documents import Document
from pipeline.text.split import Split, distinct_documents, is_evaluation_document


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


def test_a_limit_on_evaluation_documents_sends_none_of_them_to_training() -> None:
    everything, _ = parts(Split(0.5, seed=0), numbered(40))
    limited, tally = parts(Split(0.5, seed=0, max_evaluation_documents=2), numbered(40))
    assert limited["train"] == everything["train"]
    assert len(limited["evaluation"]) == 2
    assert tally == {"beyond_max_evaluation_documents": len(everything["evaluation"]) - 2}


def test_reading_stops_with_the_last_training_document() -> None:
    given = iter(numbered(40))
    split = Split(evaluation_fraction=0.0, seed=0, max_documents=3)
    assert len(list(split.assign(given, Counter()))) == 3
    assert next(given).text == "document 3"
