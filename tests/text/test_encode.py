"""Encoding in order, packed shards byte by byte and as OLMo reads them, which documents evaluate."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pipeline.text import encode
from pipeline.text.encode import (
    PackedShardWriter,
    Split,
    encoded_documents,
)
from pipeline.text.sources import Source, documents_or_reasons
from pipeline.text.tokenizer import train_bpe

TEXTS = [f"{'na' * (number % 5)} batman {number}" for number in range(60)]


def write(
    folder: Path, documents: list[list[int]], dtype: type = np.uint16, per_part: int = 100
) -> list[Path]:
    writer = PackedShardWriter(folder, np.dtype(dtype), eos_token_id=0, tokens_per_part=per_part)
    for document in documents:
        writer.add(np.array(document, dtype=np.int32))
    writer.flush()
    assert writer.num_tokens == sum(len(document) + 1 for document in documents)
    return writer.paths


def test_documents_come_back_whole_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "DOCUMENTS_PER_BATCH", 4)
    tokenizer = train_bpe(TEXTS, 300)
    records = [{"text": text, "url": f"https://{index}.org"} for index, text in enumerate(TEXTS)]
    source = Source("corpus", lambda: [*records[:30], {"text": " "}, {"txt": 1}, records[3], *records[30:]])
    expected = [ids.tolist() for ids in tokenizer.encode(TEXTS)]
    for num_written, max_train in ((0, None), (17, 40), (17, 17)):
        documents = documents_or_reasons([source], skip_malformed=True)
        found = list(encoded_documents(tokenizer, documents, Split(0.0), "train", max_train, num_written))
        kept = slice(num_written, max_train)
        given = [(document, ids) for _, document, ids in found if document and ids is not None]
        assert [document.url for document, _ in given] == [record["url"] for record in records[kept]]
        assert [token_ids.tolist() for _, token_ids in given] == expected[kept]
        left_out = {"empty": 1, "malformed": 1, "duplicate": 1} if max_train != 17 else {}
        kinds = Counter({"written": num_written, "train": len(given), **left_out})
        assert Counter(kind for kind, _, _ in found) == +kinds


def test_documents_stand_one_after_another_each_with_eos(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "two", [[5, 6], [7], [258]])
    assert path.read_bytes() == bytes([5, 0, 6, 0, 0, 0, 7, 0, 0, 0, 2, 1, 0, 0])
    (path,) = write(tmp_path / "four", [[65_536]], np.uint32)
    assert path.read_bytes() == bytes([0, 0, 1, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_olmo_reads_the_same_integers(tmp_path: Path, dtype: type) -> None:
    data = pytest.importorskip("olmo.data")
    paths = write(tmp_path, [[5, 6], [7], [8, 9, 10], [11]], dtype, per_part=5)
    # The parts are 5 6 0 7 0 and 8 9 10 0 11 0: OLMo takes whole chunks of 2 from each.
    chunks = data.MemMapDataset(*paths, chunk_size=2, memmap_dtype=dtype)
    assert [chunk["input_ids"].tolist() for chunk in chunks] == [[5, 6], [0, 7], [8, 9], [10, 0], [11, 0]]


def test_the_decision_is_fixed_by_seed_and_content() -> None:
    # sha256("0:00000000000000aa") begins with 0381, sha256("1:00000000000000aa") with e750
    splits = Split(0.5, seed=0), Split(0.5, seed=1), Split(0.0), Split(1.0)
    found = [split.kind_of("00000000000000aa") for split in splits]
    assert found == ["evaluation", "train", "train", "evaluation"]
