"""Which files a shard takes, and its share of a limit: nothing twice, nothing left, in order."""

from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.text.documents import Source
from pipeline.text.sharding import Shard, name_files, shard_folders


def sources(count: int) -> list[Source]:
    return [Source(f"file {index}", lambda: []) for index in range(count)]


def test_five_files_in_two_shards() -> None:
    given = sources(5)
    assert [source.name for source in Shard(0, 2).sources_of(given)] == ["file 0", "file 1"]
    assert [source.name for source in Shard(1, 2).sources_of(given)] == ["file 2", "file 3", "file 4"]


@pytest.mark.parametrize("count", [1, 2, 7, 128, 1024])
def test_shards_one_after_another_are_all_files_and_shares_add_up(count: int) -> None:
    given = sources(count)
    for num_shards in {1, 2, 3, 5, 7, 128, 1000} & set(range(count + 1)):
        shards = [Shard(index, num_shards) for index in range(num_shards)]
        parts = [shard.sources_of(given) for shard in shards]
        assert sum(parts, []) == given
        assert {len(part) for part in parts} <= {count // num_shards, count // num_shards + 1}
        shares = [shard.share_of(10**9 + 7) or 0 for shard in shards]
        assert sum(shares) == 10**9 + 7
        assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(("index", "num_shards"), [(-1, 4), (4, 4), (1, 1)])
def test_an_index_out_of_range_is_refused(index: int, num_shards: int) -> None:
    with pytest.raises(InputError, match=rf"--shard-index {index} is out of range.*0 to {num_shards - 1}"):
        Shard(index, num_shards)


def test_more_shards_than_files_or_tokens_are_refused() -> None:
    with pytest.raises(InputError, match=r"--num-shards 4 is more than the 3 file\(s\)"):
        Shard(0, 4).sources_of(sources(3))
    with pytest.raises(InputError, match="a limit of 3 cannot be shared by 4 shards"):
        Shard(0, 4).share_of(3)


def test_folders_are_found_by_name(tmp_path: Path) -> None:
    for name in ("00001-of-00002", "00000-of-00002", "notes"):
        (tmp_path / "shards" / name).mkdir(parents=True)
    found = shard_folders(tmp_path)
    assert list(found) == [Shard(0, 2), Shard(1, 2)]
    assert all(shard.folder(tmp_path) == folder for shard, folder in found.items())
    assert Shard(0, 1).folder(tmp_path) == tmp_path


def test_a_list_of_files_is_named_by_number_and_names() -> None:
    assert name_files(sources(3)).startswith("3 files, ")
    assert name_files(sources(3)) == name_files(sources(3))
    assert len({name_files(sources(3)), name_files(sources(3)[::-1]), name_files(sources(4)[1:])}) == 3
