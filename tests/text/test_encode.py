"""Encoding in order, packed shards byte by byte and as OLMo reads them, which documents evaluate."""

from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from pipeline.text import sources
from pipeline.text.encode import EvaluationSample, PackedShardWriter, encoded_documents
from pipeline.text.folder import EvaluationDocument
from pipeline.text.sources import Source, document_batches
from pipeline.text.split import Split
from pipeline.text.tokenizer import train_bpe

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


def test_a_part_ends_with_the_document_that_fills_it(tmp_path: Path) -> None:
    paths = write(tmp_path, [[1], [2, 3], [4], [5], [6, 7, 8, 9]], per_part=4)
    parts = [np.fromfile(path, dtype="<u2").tolist() for path in paths]
    assert parts == [[1, 0, 2, 3, 0], [4, 0, 5, 0], [6, 7, 8, 9, 0]]
    assert [path.name for path in paths] == ["part-00000.npy", "part-00001.npy", "part-00002.npy"]


def test_an_error_leaves_whole_parts_only(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        PackedShardWriter(tmp_path, np.dtype(np.uint16), eos_token_id=0, tokens_per_part=2) as writer,
    ):
        writer.add(np.array([1]))
        writer.add(np.array([], dtype=np.int32))
        begun, whole = sorted(path.name for path in tmp_path.iterdir())
        assert (begun.startswith(".part-00001.npy."), whole) == (True, "part-00000.npy")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.npy"]


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
