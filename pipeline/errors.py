"""Errors that are the user's to mend: one sentence saying what was wrong, where, and what would be right."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(Exception):
    """Bad input. A stage prints its message as one line and exits with code 2."""


def unknown_name(kind: str, name: str, valid_names: Iterable[str]) -> InputError:
    """The error for a `kind` (such as "rule") called `name`, naming the nearest of `valid_names`."""
    valid_names = sorted(valid_names)
    nearest = get_close_matches(name, valid_names, n=1, cutoff=0.4)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"valid: {', '.join(valid_names)}"
    return InputError(f"unknown {kind} '{name}'; {hint}")


def omegaconf_sentence(error: Exception) -> str:
    """OmegaConf's message and the field it is about, without its dump of types."""
    lines = [line.strip() for line in str(error).splitlines()]
    fields = [line for line in lines[1:] if line.startswith("full_key:")]
    return " ".join([lines[0], *(f"({line.replace('full_key: ', '')})" for line in fields)])
