"""One example of a synthetic task: its tokens, and the truth about what decides each answer.

Dimension letters: S tokens of an example, prompt and response; P tokens of its prompt; T = S - P tokens of
its response, which are the targets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.cli import InputError

Vocabulary = tuple[str, ...]
"""Every token of a task by name; a token ID is an index into it."""


@dataclass(frozen=True)
class Example:
    """A prompt, the response to it, and what decides the response.

    Examples of one task, size and sparsity have the same P and T, so that they stack without padding.
    """

    token_ids_S: np.ndarray
    """int64; the prompt, then the response."""
    num_prompt_tokens: int
    """P, at least 1: the first target is predicted from the prompt's last token."""
    dependencies: tuple[tuple[int, ...], ...]
    """For each target, the ascending places of the tokens that decide it: its true dependency set."""
    coupled_ids_S: np.ndarray | None
    """int64, from 0: tokens with one ID belong together (position coupling). None: the task has none."""
    content_decides_id_T: tuple[bool, ...] | None = None
    """For each target, whether its coupled ID depends on the content. Otherwise it is one step from that of
    the token before it, on or back, in every example. None: there are no coupled IDs."""

    def __post_init__(self) -> None:
        first_target = self.num_prompt_tokens
        assert len(self.dependencies) == len(self.target_ids_T) > 0
        for target, places in enumerate(self.dependencies, start=first_target):
            assert list(places) == sorted(set(places)) and all(0 <= place < target for place in places)
        assert self.coupled_ids_S is None or len(self.coupled_ids_S) == len(self.token_ids_S)
        assert (self.coupled_ids_S is None) == (self.content_decides_id_T is None)

    @property
    def target_ids_T(self) -> np.ndarray:
        """The tokens to be predicted: the response."""
        return self.token_ids_S[self.num_prompt_tokens :]

    def id_dependencies(self, *, are_spread: bool) -> tuple[tuple[int, ...], ...]:
        """For each target, the ascending places of the tokens that decide its coupled ID.

        They are the token right before it, and the prompt's tokens that it belongs with, which have that ID.
        The latter decide nothing where the ID is always one step from the one before it: unless the IDs are
        spread, as then it is not known how far a step is.

        Args:
            are_spread: whether IDs are parted by random skips (`spread_of_coupled_ids`) when they are learnt.
        """
        assert self.coupled_ids_S is not None and self.content_decides_id_T is not None
        prompt_ids = self.coupled_ids_S[: self.num_prompt_tokens]
        return tuple(
            sorted_places(
                target - 1,
                *(np.flatnonzero(prompt_ids == coupled_id).tolist() if by_content or are_spread else ()),
            )
            for target, (coupled_id, by_content) in enumerate(
                zip(self.coupled_ids_S[self.num_prompt_tokens :], self.content_decides_id_T, strict=True),
                start=self.num_prompt_tokens,
            )
        )

    def text(self, vocabulary: Vocabulary) -> str:
        """The tokens by name, with a bar between prompt and response, as the tasks' docstrings show them."""
        names = [vocabulary[token_id] for token_id in self.token_ids_S]
        return " ".join([*names[: self.num_prompt_tokens], "|", *names[self.num_prompt_tokens :]])


def token_ids(names: Sequence[str], vocabulary: Vocabulary) -> np.ndarray:
    """The IDs of tokens given by name: int64."""
    id_of = {name: token_id for token_id, name in enumerate(vocabulary)}
    return np.array([id_of[name] for name in names], dtype=np.int64)


def sorted_places(*places: int) -> tuple[int, ...]:
    """A dependency set as `Example` holds it: each place once, ascending."""
    return tuple(sorted(set(places)))


def refuse_size(task: str, size: int, least: int, unit: str, most: int | None = None) -> None:
    """Refuse a size that a task cannot have.

    Raises:
        InputError: names the task, its size's unit and the sizes that it has.
    """
    if size < least or (most is not None and size > most):
        sizes = f"at least {least}" if most is None else f"{least} to {most}"
        raise InputError(f"task {task}: size {size} is not possible; its size is {sizes} {unit}")
