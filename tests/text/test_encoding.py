"""Encoding on several processes: in order, and a sentence where a worker is lost."""

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from pipeline.cli import InputError
from pipeline.text import sources as documents
from pipeline.text.encode import Encoder, first_characters
from pipeline.text.sources import Source
from pipeline.text.tokenizer import train_bpe

TEXTS = [f"{'na' * (number % 5)} batman {number}" for number in range(60)]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_RECORDS_PER_BATCH", 4)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_documents_come_back_whole_and_in_order(num_workers: int) -> None:
    tokenizer = train_bpe(TEXTS, 300)
    records = [{"text": text, "url": f"https://{index}.org"} for index, text in enumerate(TEXTS)]
    source = Source("corpus", lambda: [*records[:30], {"text": " "}, {"txt": 1}, *records[30:]])
    tally: Counter[str] = Counter()
    with Encoder(tokenizer, num_workers, skip_malformed=True) as encoder:
        found = list(encoder.encode([source], tally))
    assert [document.url for document in found] == [record["url"] for record in records]
    assert [d.token_ids.tolist() for d in found] == [ids.tolist() for ids in tokenizer.encode(TEXTS)]
    assert {document.token_ids.dtype for document in found} == {tokenizer.token_dtype}
    assert tally == {"empty": 1, "malformed": 1}


def test_a_worker_that_was_killed_is_a_sentence() -> None:
    def records() -> Iterator[dict[str, str]]:
        for number, text in enumerate(TEXTS):
            if number == 30:
                for pid in encoder._pool._processes:  # type: ignore[attr-defined]
                    os.kill(pid, signal.SIGKILL)
            yield {"text": text}

    with (
        Encoder(train_bpe(TEXTS, 300), 2, skip_malformed=False) as encoder,
        pytest.raises(InputError, match=r"a worker process was ended from outside.*lower --num-workers"),
    ):
        list(encoder.encode([Source("corpus", records)], Counter()))


def test_reading_goes_only_a_few_batches_ahead() -> None:
    num_read = 0

    def records() -> Iterator[dict[str, str]]:
        nonlocal num_read
        for text in TEXTS * 100:
            num_read += 1
            yield {"text": text}

    with Encoder(train_bpe(TEXTS, 300), 1, skip_malformed=False) as encoder:
        next(encoder.encode([Source("corpus", records)], Counter()))
        assert num_read <= 6 * 4


def test_the_first_characters_are_whole_texts() -> None:
    assert list(first_characters(iter(["abc", "de", "f"]), 4)) == ["abc", "de"]
