"""Encoding in order, packed shards byte by byte and as OLMo reads them, which documents evaluate."""

from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from pipeline.text import encode, sources
from pipeline.text.encode import (
    EvaluationSample,
    PackedShardWriter,
    Split,
    encoded_documents,
)
from pipeline.text.folder import EvaluationDocument
from pipeline.text.sources import Document, Source, document_batches
from pipeline.text.tokenizer import train_bpe

IDS = [Document.from_record({"text": f"document {number}"}).document_id for number in range(1000)]
TEXTS = [f"{'na' * (number % 5)} batman {number}" for number in range(60)]


def write(
    folder: Path, documents: list[list[int]], dtype: type = np.uint16, per_part: int = 100
) -> list[Path]:
    with PackedShardWriter(folder, np.dtype(dtype), eos_token_id=0, tokens_per_part=per_part) as writer:
        for document in documents:
            writer.add(np.array(document, dtype=np.int32))
    assert writer.num_tokens == sum(len(document) + 1 for document in documents)
    return writer.paths


def test_documents_come_back_whole_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_RECORDS_PER_BATCH", 4)
    tokenizer = train_bpe(TEXTS, 300)
    records = [{"text": text, "url": f"https://{index}.org"} for index, text in enumerate(TEXTS)]
    source = Source("corpus", lambda: [*records[:30], {"text": " "}, {"txt": 1}, records[3], *records[30:]])
    expected = [ids.tolist() for ids in tokenizer.encode(TEXTS)]
    for num_written, max_train in ((0, None), (17, 40), (17, 17)):
        tally: Counter[str] = Counter()
        batches = document_batches([source], skip_malformed=True)
        found = list(encoded_documents(tokenizer, batches, Split(0.0), tally, num_written, max_train))
        kept = slice(num_written, max_train)
        assert [document.url for _, document, _ in found] == [record["url"] for record in records[kept]]
        assert [token_ids.tolist() for _, _, token_ids in found] == expected[kept]
        assert all(trains for trains, _, _ in found)
        left_out = {"empty": 1, "malformed": 1, "duplicate": 1} if max_train != 17 else {}
        assert {name: tally[name] for name in ("empty", "malformed", "duplicate") if tally[name]} == left_out


def test_reading_goes_only_a_few_batches_ahead_and_errors_come_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "_RECORDS_PER_BATCH", 4)
    num_read = 0

    def records() -> Iterator[dict[str, str]]:
        nonlocal num_read
        for number in range(6000):
            num_read += 1
            assert number < 30, "the fault"
            yield {"text": f"number {number}"}

    batches = document_batches([Source("corpus", records)])
    encoded = encoded_documents(train_bpe(TEXTS, 300), batches, Split(0.0), Counter())
    next(encoded)
    assert num_read <= 4 * 4
    found = []
    with pytest.raises(AssertionError, match="the fault"):
        found.extend(document.text for _, document, _ in encoded)
    assert len(found) == 28 - 1  # of all whole batches before it


def test_documents_stand_one_after_another_each_with_eos(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "two", [[5, 6], [7], [258]])
    assert path.name == "part-00000.npy"
    assert path.read_bytes() == bytes([5, 0, 6, 0, 0, 0, 7, 0, 0, 0, 2, 1, 0, 0])
    (path,) = write(tmp_path / "four", [[65_536]], np.uint32)
    assert path.read_bytes() == bytes([0, 0, 1, 0, 0, 0, 0, 0])
    assert write(tmp_path / "none", []) == [] and not (tmp_path / "none").exists()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_olmo_reads_the_same_integers(tmp_path: Path, dtype: type) -> None:
    data = pytest.importorskip("olmo.data")
    paths = write(tmp_path, [[5, 6], [7], [8, 9, 10], [11]], dtype, per_part=5)
    # The parts are 5 6 0 7 0 and 8 9 10 0 11 0: OLMo takes whole chunks of 2 from each.
    chunks = data.MemMapDataset(*paths, chunk_size=2, memmap_dtype=dtype)
    assert [chunk["input_ids"].tolist() for chunk in chunks] == [[5, 6], [0, 7], [8, 9], [10, 0], [11, 0]]


def test_the_smallest_ids_are_kept_in_every_order_and_once() -> None:
    for order in permutations([3, 1, 4, 0xFFFF_FFFF_FFFF_FFFF, 9]):
        sample = EvaluationSample(3)
        documents = [
            EvaluationDocument(f"{number:016x}", np.array([number % 1000], np.int32)) for number in order
        ]
        assert all([sample.add(document) for document in documents])
        assert {kept.token_ids[0] for kept in sample.documents()} == {1, 3, 4}
        assert not sample.add(sample.documents()[0])
        assert sample.num_left_out == 2


def kinds(split: Split, ids: list[str]) -> dict[str, str]:
    return {document_id: split.kind_of(document_id) for document_id in ids}


def test_the_decision_is_fixed_by_seed_and_content() -> None:
    # sha256("0:00000000000000aa") begins with 0381, sha256("1:00000000000000aa") with e750
    splits = Split(0.5, seed=0), Split(0.5, seed=1), Split(0.0), Split(1.0)
    found = [split.kind_of("00000000000000aa") for split in splits]
    assert found == ["evaluation", "train", "train", "evaluation"]


def test_parts_are_of_the_right_size_and_blind_to_order() -> None:
    forward = kinds(Split(0.2, seed=3), IDS)
    assert forward == kinds(Split(0.2, seed=3), IDS[::-1])
    assert set(forward.values()) == {"train", "evaluation"}
    assert 150 < list(forward.values()).count("evaluation") < 250
    assert kinds(Split(0.2, seed=4), IDS) != forward


def test_more_than_can_be_remembered_is_forgotten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "MAX_REMEMBERED_DOCUMENTS", 4)
    split, ids = Split(0.0), [f"{number:016x}" for number in range(6)]
    # the fifth does not fit: it starts another run, in which the first four are new again
    kinds_met = [split.kind_of(ids[number]) for number in (0, 1, 2, 3, 0, 3, 4, 4, 0)]
    assert kinds_met == ["train"] * 4 + ["duplicate"] * 2 + ["train", "duplicate", "train"]
