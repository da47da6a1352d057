"""The order of a study's commands: each after those it needs, measuring dealt to several processes."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pipeline.studies.command import Command, Measuring


@dataclass(frozen=True)
class Share:
    """What one process does of a command."""

    command: Command
    index: int = 0
    number: int = 1
    """Of shares, counted from 0: `index`."""

    @property
    def name(self) -> str:
        """Different from all others of the study."""
        return (
            self.command.name
            if self.number == 1
            else f"{self.command.name}-{self.index + 1}-of-{self.number}"
        )

    @property
    def environment(self) -> dict[str, str]:
        """What tells a measuring stage its share, as torchrun tells it (pipeline/measuring/tasks.py).

        And not --task-index: a study that goes on with another number of jobs would be refused.
        """
        if self.number == 1:
            return {}
        return {"RANK": str(self.index), "WORLD_SIZE": str(self.number)}


class Schedule:
    """What is still to run."""

    def __init__(self, commands: Sequence[Command], finished: Collection[str], most_shares: int) -> None:
        """Of `commands` all but those named in `finished`; each in `most_shares` shares at most."""
        self._waiting = [command for command in commands if command.name not in finished]
        self._finished = set(finished)
        self._most_shares = most_shares
        self._ready: list[Share] = []
        self._unended: dict[str, int] = {}
        """Command -> shares of it that were handed out or are ready, and have not ended."""
        self.num_commands = len(commands)

    @property
    def num_finished(self) -> int:
        """Commands, those that had finished before included."""
        return len(self._finished)

    def next(self) -> Share | None:
        """The share to be started now; None where all that is left waits for what runs."""
        if not self._ready:
            command = next((one for one in self._waiting if self._finished.issuperset(one.needs)), None)
            if command is None:
                return None
            self._waiting.remove(command)
            number = num_shares(command, self._most_shares)
            self._ready = [Share(command, index, number) for index in range(number)]
            self._unended[command.name] = number
        return self._ready.pop(0)

    def ended(self, share: Share) -> bool:
        """Take note that a share has ended well; whether its command has thereby finished."""
        name = share.command.name
        self._unended[name] -= 1
        if not self._unended[name]:
            self._finished.add(name)
        return name in self._finished


def num_shares(command: Command, at_most: int) -> int:
    """How many processes a command is dealt to: of a measuring stage as many as have a shard to measure."""
    if not isinstance(command.about, Measuring) or at_most == 1:
        return 1
    # Imported late: seconds, which a study that has finished does not take.
    from pipeline.measuring.flags import DOCUMENTS_PER_SHARD
    from pipeline.text.manifest import read_manifest

    manifest = read_manifest(command.about.data)
    num_documents = manifest["counts"]["evaluation_documents"] if manifest else 1
    num_documents = min(num_documents, command.about.evaluation.max_documents or num_documents)
    return max(1, min(at_most, math.ceil(num_documents / DOCUMENTS_PER_SHARD)))
