"""Which shards of a result fall to this process: one task of several, one process a GPU within a task.

The shards, Parquet files of --documents-per-shard documents, are what they are; a share says only who
measures them, and batches do not depend on it (pipeline.influence.batching). So no number and no byte of a
result depends on how many tasks or processes there were, on one kind of machine whose memory suffices.
"""

import argparse
import os
from dataclasses import dataclass

from pipeline.errors import InputError
from pipeline.stage import positive_int, whole_number


@dataclass(frozen=True)
class Share:
    """One process of one task among those that measure a result together."""

    task_index: int = 0
    num_tasks: int = 1
    process_index: int = 0
    """Of the task's processes, as torchrun and `accelerate launch` number them in RANK."""
    num_processes: int = 1

    def shards(self, num_shards: int) -> range:
        """The indices, of `num_shards` shards, that fall to this process.

        Tasks take turns, and so do the processes of a task: 2 tasks of 2 processes measure shards 0, 4, 8, …;
        2, 6, …; 1, 5, …; 3, 7, …
        """
        first = self.task_index + self.num_tasks * self.process_index
        return range(first, num_shards, self.num_tasks * self.num_processes)

    @property
    def name(self) -> str | None:
        """Of the task and of the process, as a lock of their part of the results is called; None for all."""
        task = f"task-{self.task_index}-of-{self.num_tasks}"
        process = f"process-{self.process_index}-of-{self.num_processes}"
        return None if self == Share() else f"{task}-{process}"

    def of_the_task(self) -> "Share":
        """The share of all processes of this one's task together."""
        return Share(self.task_index, self.num_tasks)


def add_share_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that deal a stage's work to several tasks, and say what is left of it."""
    add = parser.add_argument
    add(
        "--task-index", type=whole_number(0), metavar="I",
        help="measure one share of the documents: number I, counted from 0, of --num-tasks; all of them if"
        " not given. Under torchrun or `accelerate launch` the processes, one a GPU, divide the share",
    )  # fmt: skip
    add(
        "--num-tasks", type=positive_int, metavar="N",
        help="into how many shares the documents are dealt; once shards of one N stand, another N is refused",
    )  # fmt: skip
    add(
        "--status", action="store_true",
        help="measure nothing: print which shards are missing, and whose they are; exit code 0 if none is, 1"
        " if any, 2 for bad input",
    )  # fmt: skip


def share_of_this_process(arguments: argparse.Namespace) -> Share:
    """The share that the command line and the launcher's environment name.

    Raises:
        InputError: the flags name no share, or --device-map would have every process take all devices.
    """
    index, count = arguments.task_index, arguments.num_tasks
    if (index is None) != (count is None):
        raise InputError("--task-index and --num-tasks say only together which share to measure: give both")
    if count is not None and not 0 <= index < count:
        raise InputError(
            f"--task-index {index} is no share of --num-tasks {count}: they are counted from 0, so the last"
            f" is {count - 1}"
        )
    num_processes = int(os.environ.get("WORLD_SIZE", 1))
    if arguments.device_map is not None and num_processes > 1:
        raise InputError(
            f"--device-map spreads one model over all devices, and each of {num_processes} processes would do"
            " so; start one process, or leave --device-map out"
        )
    return Share(index or 0, count or 1, int(os.environ.get("RANK", 0)), num_processes)
