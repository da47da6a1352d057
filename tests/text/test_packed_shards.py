"""Packed shards, byte by byte, and as OLMo reads them."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.text.encode import PackedShardWriter


def write(
    folder: Path, documents: list[list[int]], dtype: type = np.uint16, per_part: int = 100
) -> list[Path]:
    with PackedShardWriter(folder, np.dtype(dtype), eos_token_id=0, tokens_per_part=per_part) as writer:
        for document in documents:
            writer.add(np.array(document, dtype=np.int32))
    assert writer.num_tokens == sum(len(document) + 1 for document in documents)
    return writer.paths


def test_documents_stand_one_after_another_each_with_eos(tmp_path: Path) -> None:
    (path,) = write(tmp_path, [[5, 6], [7], [258]])
    assert path.name == "part-00000.npy"
    assert path.read_bytes() == bytes([5, 0, 6, 0, 0, 0, 7, 0, 0, 0, 2, 1, 0, 0])


def test_four_bytes_for_a_large_vocabulary(tmp_path: Path) -> None:
    (path,) = write(tmp_path, [[65_536]], np.uint32)
    assert path.read_bytes() == bytes([0, 0, 1, 0, 0, 0, 0, 0])


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
        assert [path.name for path in tmp_path.iterdir()] == ["part-00000.npy"]
        writer.add(np.array([], dtype=np.int32))
        begun, whole = sorted(path.name for path in tmp_path.iterdir())
        assert (begun.startswith(".part-00001.npy."), whole) == (True, "part-00000.npy")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.npy"]


def test_no_documents_no_file(tmp_path: Path) -> None:
    assert write(tmp_path, []) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_olmo_reads_the_same_integers(tmp_path: Path, dtype: type) -> None:
    data = pytest.importorskip("olmo.data")
    paths = write(tmp_path, [[5, 6], [7], [8, 9, 10], [11]], dtype, per_part=5)
    # The parts are 5 6 0 7 0 and 8 9 10 0 11 0: OLMo takes whole chunks of 2 from each.
    chunks = data.MemMapDataset(*paths, chunk_size=2, memmap_dtype=dtype)
    assert [chunk["input_ids"].tolist() for chunk in chunks] == [[5, 6], [0, 7], [8, 9], [10, 0], [11, 0]]
