"""Packed shards byte by byte and as OLMo reads them, which documents evaluate."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.text.encode import PackedShardWriter, evaluates


def write(
    folder: Path, documents: list[list[int]], dtype: type = np.uint16, per_part: int = 100
) -> list[Path]:
    writer = PackedShardWriter(folder, np.dtype(dtype), eos_token_id=0, tokens_per_part=per_part)
    for document in documents:
        writer.add(np.array(document, dtype=np.int32))
    writer.flush()
    assert writer.num_tokens == sum(len(document) + 1 for document in documents)
    return writer.paths


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
    decisions = [evaluates("00000000000000aa", fraction, seed) for fraction in (0, 0.5, 1) for seed in (0, 1)]
    assert decisions == [False, False, True, False, True, True]
