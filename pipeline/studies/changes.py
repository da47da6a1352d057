"""Refusing a study whose parts would no longer fit together, before anything of it runs."""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pipeline.errors import InputError
from pipeline.studies.command import Command, Training
from pipeline.studies.finished import Finished

logger = logging.getLogger("pipeline")
TrainingChanges = Callable[[Training], list[str]]
"""The settings in which a training, as it would run now, differs from the one that its folder holds."""
_MOST_NAMED = 4  # files in one sentence


def refuse_changes(
    asked: Iterable[Command], study: Sequence[Command], finished: Finished, training_changes: TrainingChanges
) -> None:
    """Refuse where a command finished on something else than it would read now.

    A configuration may be edited in what decides no number, such as a comment: then the mark is renewed.

    Args:
        asked: commands to look at; those that need one that has not finished are left for their turn.
        study: all of the study.
        finished: its marks.
        training_changes: how the training stage itself tells what decides its numbers.

    Raises:
        InputError: says what has changed, and which folders were made of what it was before.
    """
    changes: dict[str, list[str]] = {}
    by_name = {command.name: command for command in study}
    for command in asked:
        needs = [by_name[name] for name in command.needs]
        if any(need.writes and need not in finished for need in needs):
            continue
        phrases = _changes_of(command, finished, training_changes)
        if phrases:
            changes[command.name] = phrases
    if changes:
        folders = _made_of(changes, study)
        raise InputError(
            f"{_in_words(changes)}. Nothing was overwritten: choose another run folder, as in run=FOLDER, or"
            f" remove what was made before the change: rm -r {' '.join(map(str, folders))}"
        )


def _changes_of(command: Command, finished: Finished, training_changes: TrainingChanges) -> list[str]:
    words = finished.changed_reads(command)
    if isinstance(command.about, Training) and str(command.about.config) in words:
        settings = training_changes(command.about)
        words.remove(str(command.about.config))
        if not words and not settings:
            finished.add(command, finished.reads(command))
        return [*(f"{word} has changed" for word in words), *settings]
    return [f"{word} has changed" for word in words]


def _in_words(changes: dict[str, list[str]]) -> str:
    """What changed, each said once with the commands it is about."""
    about: dict[str, list[str]] = {}
    for name, phrases in changes.items():
        about.setdefault("; ".join(phrases), []).append(name)
    return "; ".join(f"since {', '.join(names)} finished, {phrase}" for phrase, names in about.items())


def _made_of(changed: Iterable[str], study: Sequence[Command]) -> list[Path]:
    """The folders that changed commands, and those that need them, have written."""
    names, folders = set(changed), []
    for command in study:
        if command.name in names or names & set(command.needs):
            names.add(command.name)
            folders += [folder for path in command.writes if (folder := _to_remove(path)).exists()]
    return list(dict.fromkeys(folders))


def _to_remove(path: Path) -> Path:
    """The whole folder that a path of `Command.writes` stands for."""
    if path.name == "manifest.json":
        return path.parent
    is_of_a_stage = len(path.parents) > 2 and path.parents[1].name == "_stages"
    return path.parents[2] if is_of_a_stage else path


def say_changed_code(commands: Sequence[Command], finished: Finished) -> None:
    """Name what was made by other code than there is now; it is kept."""
    files_of = [finished.changed_code(command) for command in commands]
    changed = [command for command, files in zip(commands, files_of, strict=True) if files]
    if changed:
        files = sorted({file for of_one in files_of for file in of_one})
        more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
        folders = dict.fromkeys(_to_remove(path) for command in changed for path in command.writes)
        logger.warning(
            "the code has changed since %s finished (%s%s), and what they made is kept; to make it anew, run"
            " in another folder, as in run=FOLDER, or first: rm -r %s",
            ", ".join(command.name for command in changed), ", ".join(files[:_MOST_NAMED]), more,
            " ".join(map(str, folders)),
        )  # fmt: skip


class Inputs:
    """The study file, configurations and text as they were when the study began."""

    def __init__(self, study_file: Path, commands: Iterable[Command], finished: Finished) -> None:
        """Note them; what the study itself writes is not among them."""
        commands = list(commands)
        self._finished = finished
        self._study_file, self._study = study_file, study_file.read_bytes()
        written = [path for command in commands for path in command.writes]
        self._before = {
            word: fingerprint
            for command in commands
            for word, fingerprint in finished.reads(command).items()
            if not any(_is_one_below_the_other(Path(word), path) for path in written)
        }

    def refuse_edited(self, command: Command) -> None:
        """Refuse to start a command on something else than was there for the commands before it.

        Raises:
            InputError: says what was edited.
        """
        for word, now in self._finished.reads(command).items():
            if self._before.get(word, now) != now:
                raise InputError(
                    f"{word} was edited while the study ran, and {command.name} would be made of other input"
                    " than what has run since: undo the edit, or choose another run folder, as in run=FOLDER;"
                    " then run the same again"
                )

    def say_edited_study(self) -> None:
        """Say so where the study file was edited: what it said at the start is what has run."""
        try:
            is_edited = self._study_file.read_bytes() != self._study
        except OSError:
            is_edited = True
        if is_edited:
            logger.warning(
                "%s was edited or moved while this ran: what it said at the start has run; run the same again"
                " for what it says now",
                self._study_file,
            )


def _is_one_below_the_other(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
