"""Which files a task takes, and its share of a limit: nothing twice, nothing left, in order."""

from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.text.folder import TokenizationTask, name_files, task_folders
from pipeline.text.sources import Source


def sources(count: int) -> list[Source]:
    return [Source(f"file {index}", lambda: []) for index in range(count)]


def test_five_files_in_two_shards() -> None:
    given = sources(5)
    assert [source.name for source in TokenizationTask(0, 2).sources_of(given)] == ["file 0", "file 1"]
    assert [source.name for source in TokenizationTask(1, 2).sources_of(given)] == [
        "file 2",
        "file 3",
        "file 4",
    ]


@pytest.mark.parametrize("count", [1, 2, 7, 128, 1024])
def test_shards_one_after_another_are_all_files_and_shares_add_up(count: int) -> None:
    given = sources(count)
    for num_tasks in {1, 2, 3, 5, 7, 128, 1000} & set(range(count + 1)):
        tasks = [TokenizationTask(index, num_tasks) for index in range(num_tasks)]
        parts = [task.sources_of(given) for task in tasks]
        assert sum(parts, []) == given
        assert {len(part) for part in parts} <= {count // num_tasks, count // num_tasks + 1}
        shares = [task.share_of(10**9 + 7) or 0 for task in tasks]
        assert sum(shares) == 10**9 + 7
        assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(("index", "num_tasks"), [(-1, 4), (4, 4), (1, 1)])
def test_an_index_out_of_range_is_refused(index: int, num_tasks: int) -> None:
    with pytest.raises(InputError, match=rf"--task-index {index} is out of range.*0 to {num_tasks - 1}"):
        TokenizationTask(index, num_tasks)


def test_more_shards_than_files_or_tokens_are_refused() -> None:
    with pytest.raises(InputError, match=r"--num-tasks 4 is more than the 3 file\(s\)"):
        TokenizationTask(0, 4).sources_of(sources(3))
    with pytest.raises(InputError, match="a limit of 3 cannot be shared by 4 tasks"):
        TokenizationTask(0, 4).share_of(3)


def test_folders_are_found_by_name(tmp_path: Path) -> None:
    for name in ("00001-of-00002", "00000-of-00002", "notes"):
        (tmp_path / "tasks" / name).mkdir(parents=True)
    found = task_folders(tmp_path)
    assert list(found) == [TokenizationTask(0, 2), TokenizationTask(1, 2)]
    assert all(task.folder(tmp_path) == folder for task, folder in found.items())
    assert TokenizationTask(0, 1).folder(tmp_path) == tmp_path


def test_a_list_of_files_is_named_by_number_and_names() -> None:
    assert name_files(sources(3)).startswith("3 files, ")
    assert name_files(sources(3)) == name_files(sources(3))
    assert len({name_files(sources(3)), name_files(sources(3)[::-1]), name_files(sources(4)[1:])}) == 3
