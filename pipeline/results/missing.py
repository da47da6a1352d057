"""Which of many numbered things are missing, in few words."""

from collections.abc import Iterable
from itertools import groupby


def as_ranges(indices: Iterable[int]) -> str:
    """[9, 3, 7, 8] as "3,7-9", which sbatch --array takes as it stands."""
    runs = []
    for _, run in groupby(enumerate(sorted(indices)), lambda pair: pair[1] - pair[0]):
        members = [index for _, index in run]
        runs.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(runs)
