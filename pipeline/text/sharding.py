"""A large corpus in shards: which files one task of an array tokenizes, and where it writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pipeline.errors import InputError
from pipeline.text.documents import Source

SHARDS_FOLDER = "shards"


@dataclass(frozen=True)
class Shard:
    """Shard `index` of `num_shards`, counted from 0."""

    index: int
    num_shards: int

    def __post_init__(self) -> None:
        """Refuse an index that is out of range.

        Raises:
            InputError: it is.
        """
        if not 0 <= self.index < self.num_shards:
            raise InputError(
                f"--shard-index {self.index} is out of range; with --num-shards {self.num_shards} it goes"
                f" from 0 to {self.num_shards - 1}"
            )

    @property
    def is_whole(self) -> bool:
        """Whether this one shard is everything."""
        return self.num_shards == 1

    def folder(self, out: Path) -> Path:
        """Where the shard is written: `out` itself, where there is only one."""
        return out if self.is_whole else out / SHARDS_FOLDER / f"{self.index:05d}-of-{self.num_shards:05d}"

    def sources_of(self, sources: Sequence[Source]) -> list[Source]:
        """The files of this shard: adjacent ones, so that shards one after another are all files in order.

        Five files in two shards are files 0, 1 and files 2, 3, 4.

        Raises:
            InputError: there are more shards than files.
        """
        if self.num_shards > len(sources):
            raise InputError(
                f"--num-shards {self.num_shards} is more than the {len(sources)} file(s) of --source;"
                " a shard is one file or several"
            )
        start, end = self._range_of(len(sources))
        return list(sources[start:end])

    def share_of(self, limit: int | None) -> int | None:
        """The part of this shard in a limit on the whole; all parts add up to it.

        Raises:
            InputError: nothing is left for this shard.
        """
        if limit is None:
            return None
        start, end = self._range_of(limit)
        if start == end:
            raise InputError(f"a limit of {limit} cannot be shared by {self.num_shards} shards; raise it")
        return end - start

    def _range_of(self, count: int) -> tuple[int, int]:
        return count * self.index // self.num_shards, count * (self.index + 1) // self.num_shards


def shard_folders(out: Path) -> dict[Shard, Path]:
    """The shards in `out` that were begun, by their folders' names."""
    found = {}
    for folder in sorted((out / SHARDS_FOLDER).glob("?????-of-?????")):
        index, _, num_shards = folder.name.partition("-of-")
        found[Shard(int(index), int(num_shards))] = folder
    return found


def name_files(sources: Sequence[Source]) -> str:
    """A short name for a list of files, by number and names, by which shards know that they share it."""
    names = "\n".join(source.short_name for source in sources)
    return f"{len(sources)} files, {sha256(names.encode()).hexdigest()[:16]}"
