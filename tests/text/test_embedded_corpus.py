"""The embedded corpus: how a passage is cut from a question, and that each comes once."""

from pipeline.text.sources import boolq_passage, distinct_passages, embedded_records, mmlu_passage

LONG = " ".join(f"word{number}" for number in range(100))


def test_boolq_passage_ends_before_the_question() -> None:
    assert boolq_passage("Ice -- Ice floats.\nQuestion: does ice float?\nAnswer:") == "Ice -- Ice floats."


def test_a_shared_mmlu_passage_loses_its_first_and_last_line() -> None:
    head = "This question refers to the following information.\n"
    assert mmlu_passage(f"{head}{LONG}\nSome Author, 1800\nWho wrote this?") == f"{LONG}\nSome Author, 1800"
    assert mmlu_passage(f"{LONG}\nWhat follows?") == f"{LONG}\nWhat follows?"
    assert mmlu_passage("Too short to be a passage.") is None


def test_copies_and_near_copies_are_left_out() -> None:
    near_copy = LONG.upper() + " and a new ending"  # 88 of its 92 runs of 13 words are LONG's
    other = " ".join(f"other{number}" for number in range(100))
    passages = ["short one", LONG, near_copy, other, "short one", LONG]
    assert list(distinct_passages(iter(passages))) == ["short one", LONG, other]


def test_the_corpus_is_real_text_of_known_size() -> None:
    texts = [record["text"] for record in embedded_records() if not isinstance(record, bytes)]
    assert len(texts) == len(set(texts)) == 11_360
    assert sum(len(text.split()) for text in texts) == 1_215_990
    assert texts[0].startswith("Persian language -- Persian")
    assert not any("\nQuestion:" in text for text in texts)
