"""What is asked of one text, and which of its tokens are measured. No torch: a refusal is quick."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import InputError
from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.rules import find_rule

SHORT_CONTEXT_LENGTH = 16
DEFAULT_KS = (1, 4)
DEFAULT_RULES = ("leave_one_out_divergence",)
"""One pass a left-out token serves every target, and what it chooses, blind to the answer, needs no null."""
_OF_STUDIES = {
    "leave_one_out_search": "spends a budget, which only influential_tokens can be given",
    "learned_attention": "learns from other documents, which only influential_tokens has",
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Everything but the text."""

    model: str
    """An OLMo run or checkpoint, a Hugging Face folder, or a name on the hub."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    tokenizer: str | None = None
    """A tokenizer.json, or a folder that holds one; None: the model's own."""
    short_context_length: int = SHORT_CONTEXT_LENGTH
    """s, tokens."""
    long_context_length: int | None = None
    """Tokens of the text that are measured; None: as many as text and model have."""
    num_targets: int | None = None
    """The last so many tokens are predicted; None: all that have a far context of max(ks) tokens."""
    rules: Sequence[str] = DEFAULT_RULES
    ks: Sequence[int] = DEFAULT_KS
    """Numbers of far tokens studied, ascending."""
    foreign_text: str | None = None
    """Stands in for the far context where the specific gain is asked; None: English passages."""
    dtype: str = "auto"
    device: str | None = None
    trust_remote_code: bool = False
    recovery_fraction: float = 0.9
    """k* recovers this much of the gain."""
    minimum_gain: float = 0.1
    """Nats; below it there is nothing to recover."""
    seed: int = 0

    def refuse(self) -> None:
        """Do nothing where this can be measured, whatever the text and the model.

        Raises:
            InputError: a rule is not known, or takes flags that there are none of here.
        """
        for rule in self.rules:
            find_rule(rule)
            for start, why in _OF_STUDIES.items():
                if rule.startswith(start):
                    raise InputError(f"rule {rule} {why}; choose another, such as leave_one_out")


@dataclass(frozen=True)
class Part:
    """The part of a text that is measured."""

    first_token: int
    """Place in the text's tokens of the first that any target sees."""
    lengths: ContextLengths
    ks: tuple[int, ...]
    """Those that the first target's far context holds."""

    @property
    def end(self) -> int:
        """One more than the place of the last target in the text's tokens."""
        return self.first_token + self.lengths.long_context_length


def measured_part(asked: Asked, num_tokens: int, num_positions: int | None) -> Part:
    """Which tokens of a text are measured: its end, as long as text and model allow.

    Args:
        asked: what is asked for.
        num_tokens: of the text.
        num_positions: that the model was made for; None where it does not say.

    Raises:
        InputError: the text is too short, or the flags leave no target.
    """
    short = asked.short_context_length
    if num_tokens < 2 * short:
        raise InputError(
            f"the text has {num_tokens} tokens, fewer than two short contexts of {short}: give a longer text,"
            f" or --short-context-length {num_tokens // 2} or less"
        )
    length = asked.long_context_length or min(num_tokens, num_positions or num_tokens)
    length = min(length, num_tokens)
    most_far = length - 1 - short
    ks = tuple(k for k in sorted(set(asked.ks)) if k <= most_far)
    if not ks:
        raise InputError(
            f"{length} tokens leave the last one {max(most_far, 0)} far tokens beside a short context of"
            f" {short}, and --k asks for {min(asked.ks)} at least: choose a longer --long-context-length, a"
            " shorter --short-context-length or a smaller --k"
        )
    most_targets = length - short - ks[-1]
    if asked.num_targets is not None and asked.num_targets > most_targets:
        raise InputError(
            f"--targets {asked.num_targets} is more than the {most_targets} tokens that have {ks[-1]} far"
            f" tokens before a short context of {short}; choose fewer, or all"
        )
    return Part(num_tokens - length, ContextLengths(short, length, asked.num_targets or most_targets), ks)
