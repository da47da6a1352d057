"""Selection rules: which far tokens are called influential, what a choice costs, and what is refused.

A rule ranks the far context of every target; S_k is its first k, so the S_k are nested. It is a search and a
criterion: the target's loss (the plain name), which sees the answer, or how far the whole prediction is from
that of the long context (the name with `_divergence`), which does not. A choice of few tokens among hundreds
carries more information than the effect that it is to explain, so every search nearly reaches what it
optimises; its null says how nearly, and only the excess is an effect. The paper selects by its Eq. 20, whose
text is not among our sources; `leave_one_out` is our reading of it, and results say which rule was used.

No torch here: a --help and a refusal are quick.

Shapes: T targets, F far-context positions (of the last target), K the largest k.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipeline.cli import InputError, unknown_name
from pipeline.measuring.flags import (
    BLOCKS,
    FEWEST_BLOCKS,
    LONGEST_EXACT,
    NUM_SAMPLED_ANSWERS,
    ContextLengths,
    block_widths,
    num_kept,
)
from pipeline.results.schemas import MIMICRY, SELECTION

if TYPE_CHECKING:
    from pipeline.measuring.far_context import FarContext

REMOVE = "remove"
BACKGROUND = "background"
INTERVENTIONS = (REMOVE, BACKGROUND)
"""What becomes of a token that is left out: nothing is there; or another document's token is, in the place of
the whole far context but for S_k."""
DEFAULT_INTERVENTION = BACKGROUND
CONTROLS = ("random", "nearest")
DEFAULT_RULES = ("leave_one_out_divergence", "leave_one_out", *CONTROLS)
"""First the best one of the trial of the measures, within `DEFAULT_INTERVENTION` (analysis/LOG.md)."""
DEFAULT_KS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of influential tokens studied where nothing else is asked for, as far as the far context goes."""

_ADDING_ONE_BY_ONE = ("add_one_in", "add_one_in_divergence", "greedy", "greedy_divergence")
"""Of these the far tokens without context are read once, and the first round is shared."""


@dataclass(frozen=True)
class RuleCosts(ContextLengths):
    """Token-forwards (tokens run through the network) of the choice for a chunk's own far context.

    With s the short context, F a target's far context, n = l - 1 the tokens before the last target and m the
    targets of a chunk. The null's sequences hold other numbers of rows. What all rules share (the long, short
    and sparse-context losses) is not in a rule's cost. Batching adds an eighth at most. A test counts what
    really runs.
    """

    intervention: str = REMOVE
    num_backgrounds: int = 1
    """Foreign documents, under the intervention `background`."""
    screen: int | None = None
    """Blocks that a round of leave_one_out leaves out; None: every token. Which blocks are split the text
    decides, so that a screen's cost is about what the formula says."""

    def token_forwards_per_target(self, rule: str, k: int) -> float:
        """To choose the first k tokens, a target."""
        return self.token_forwards(rule, k) / self.targets_per_chunk

    def token_forwards(self, rule: str, k: int) -> int:
        """The same for all targets of a chunk together."""
        return RULES[rule].cost(self, k)

    def token_forwards_together(self, rules: Collection[str], k: int) -> int:
        """Of several rules at once: a search by either criterion runs its passes once.

        The first round of the greedy rules is add_one_in's, of either criterion.
        """
        by_search = {
            rule if rule == "gradient_divergence" else rule.removesuffix("_divergence"): rule
            for rule in rules
            if rule not in _ADDING_ONE_BY_ONE
        }
        total = sum(self.token_forwards(rule, k) for rule in by_search.values())
        if any(rule in _ADDING_ONE_BY_ONE for rule in rules):
            num_greedy = sum(rule.startswith("greedy") for rule in rules)
            total += self.additions(1) + num_greedy * (self.greedy(k) - self.greedy(1))
        return total

    def backward_tokens_per_target(self, rule: str) -> int:
        """Tokens that backward passes run through to choose any number of tokens, a target."""
        num_passes = {
            "gradient": 1,
            "gradient_divergence": NUM_SAMPLED_ANSWERS,
        }
        return num_passes.get(rule, 0) * self.one_pass()

    @property
    def num_far_tokens(self) -> range:
        """F of each target of a chunk."""
        short = self.short_context_length
        return range(self.first_target - short, self.long_context_length - short)

    def one_pass(self, k: int = 0) -> int:
        """n: all tokens once, for all targets."""
        return self.long_context_length - 1

    def removals(self, k: int) -> int:
        """n, then the n - 1 - i tokens after removal i of the F of the last target, each anew: about l^2 / 2.

        Under `background` a token is replaced by each foreign document's in turn, which runs it too.
        """
        if self.screen is not None:
            num_each = self.num_backgrounds if self.intervention == BACKGROUND else 1
            far = self.num_far_tokens
            return self.one_pass() + num_each * self._blocks(self.one_pass(), far[0], far[-1])
        num_before = self.one_pass()
        num_far = self.num_far_tokens[-1]
        after_removals = sum(num_before - 1 - i for i in range(num_far))
        if self.intervention != BACKGROUND:
            return num_before + after_removals
        return num_before + self.num_backgrounds * (after_removals + num_far)

    def null_removals(self) -> int:
        """The same of another document's tokens: a pass over the packed sequences for each token or block."""
        if self.screen is None:
            return replace(self, intervention=BACKGROUND).additions(1)
        num_each = self.num_backgrounds if self.intervention == BACKGROUND else 1
        blocks = sum(self._blocks(rows, far, far) for rows, far in self._packed_sequences())
        return self.foreign_context() + num_each * blocks

    def _blocks(self, num_rows: int, fewest_far: int, most_far: int) -> int:
        """Rows after what the rounds of a screen leave out, those split being spread evenly."""
        assert self.screen is not None
        widths, short_by = block_widths(fewest_far, self.screen), int(self.intervention == REMOVE)
        first = range(0, fewest_far - fewest_far % widths[0], widths[0])
        total = sum(num_rows - start - widths[0] * short_by for start in first)
        total += sum(num_rows - place - short_by for place in range(fewest_far, most_far))
        for width, narrower in pairwise(widths):
            num_split = num_kept(self.screen, width, narrower) * width // narrower
            total += num_split * (num_rows - narrower * short_by - fewest_far // 2)
            beside = range(fewest_far - fewest_far % width, fewest_far - fewest_far % narrower, narrower)
            total += sum(num_rows - start - narrower * short_by for start in beside)
        return total

    def additions(self, k: int) -> int:
        """F s a target; under `background` one pass restores a token for all targets."""
        if self.intervention != BACKGROUND:
            return self.greedy(1)
        restored = sum(rows + sum(rows - i for i in range(far)) for rows, far in self._packed_sequences())
        return self.num_backgrounds * restored

    def greedy(self, k: int) -> int:
        """Sum over rounds j = 1 ... k of (F - j + 1) (s + j - 1), and once the far tokens without context."""
        rounds = (
            (num_far - j + 1) * (self.short_context_length + j - 1)
            for j in range(1, k + 1)
            for num_far in self.num_far_tokens
        )
        return self.num_far_tokens[-1] + sum(rounds)

    def foreign_context(self) -> int:
        """All targets in a foreign far context, which is read once for each of the packed sequences."""
        return sum(rows for rows, _ in self._packed_sequences())

    def sparse_contexts(self, rules: Collection[str], ks: Sequence[int]) -> int:
        """Every studied number of tokens of every rule: beside the short context, or in each background.

        A background is read once up to the last far token, and for each set again from its first token on:
        of k tokens spread evenly about the (F - k) / (k + 1)-th, of the nearest ones the (F - k)-th.
        """
        fewest, short = self.num_far_tokens[0], self.short_context_length
        numbers = [(rule, k) for rule in rules for k in studied_numbers(rule, ks, fewest, self.screen)]
        if self.intervention != BACKGROUND:
            return self.targets_per_chunk * sum(short + k for _, k in numbers)
        again = sum(
            short + k if rule == "nearest" else short + num_far - (num_far - k) / (k + 1)
            for rule, k in numbers
            for num_far in self.num_far_tokens
        )
        return self.num_backgrounds * (self.num_far_tokens[-1] + round(again))

    def _packed_sequences(self) -> list[tuple[int, int]]:
        """Rows and far rows of each of the null's sequences."""
        parts = [self.num_far_tokens_T[index_T] for index_T in self.packed_targets()]
        return [(int(part[-1]) + self.short_context_length * len(part), int(part[-1])) for part in parts]


Sees = Literal["answer", "prediction", "attention", "nothing"]
_CRITERIA: dict[str, Sees] = {"": "answer", "_divergence": "prediction"}
"""The end of a rule's name -> what it sees."""
Ranking = Callable[[Sequence["FarContext"], int, np.random.Generator], np.ndarray]
"""(one far context as each chooser reads it, K, generator of the rules that draw) -> the first K tokens,
most influential first, no position twice: int64 [T, K]; every target's far context holds K."""
Scores = Callable[["FarContext"], np.ndarray]
"""Far context -> a score for each target and far token: [T, F], NaN where a token is none of the target's."""


@dataclass(frozen=True)
class Rule:
    """A search, its criterion, and what that means for the null."""

    name: str
    sees: Sees
    """Of the target: its loss; the model's whole prediction of it; where its query looks; nothing."""
    ranking: Ranking
    cost: Callable[[RuleCosts, int], int]
    """Token-forwards of all targets of a chunk, given k."""
    interventions: tuple[str, ...] = (REMOVE, BACKGROUND)
    """Those that it can be asked for under."""
    reads_everything: bool = False
    """Whether it leaves nothing out, but looks at the long context as it is."""
    builds_up: bool = False
    """Whether it looks for tokens that together give the prediction, instead of those that it misses."""

    @property
    def knows_interventions(self) -> bool:
        """Whether what it chooses depends on what stands in the place of other tokens."""
        return len(self.interventions) > 1 and self.sees != "nothing" and not self.reads_everything

    @property
    def null(self) -> str:
        """The kind of null that fits it: another document's tokens at the same positions, either way.

        MIMICRY where it fits the prediction: these tokens are chosen to reproduce *this* document's.
        Otherwise SELECTION: as in the own far context, within the other document's.
        """
        return MIMICRY if self.builds_up and self.sees == "prediction" else SELECTION

    @property
    def needs_null(self) -> bool:
        """Whether what it recovers says nothing without its null: it fits the answer, or the prediction.

        Where it does not, foreign tokens are as likely to hurt, and the excess over them would flatter it.
        """
        return self.sees == "answer" or self.null == MIMICRY

    @property
    def says_something_alone(self) -> bool:
        """Whether it is measured where a document has no null: it is no control, and needs none."""
        return self.name not in CONTROLS and not self.needs_null


def ranked(scores_TF: np.ndarray, max_k: int) -> np.ndarray:
    """Positions of the `max_k` largest scores, largest first, the nearer of equals first: int64 [T, K].

    NaN is no candidate.
    """
    # A stable sort keeps the order of equals, so sorting from the nearest token on breaks ties rightly.
    nearest_first_TF = np.where(np.isnan(scores_TF), -np.inf, scores_TF)[:, ::-1]
    order_TK = np.argsort(-nearest_first_TF, axis=1, kind="stable")[:, :max_k]
    return scores_TF.shape[1] - 1 - order_TK


def _by(scores: Scores) -> Ranking:
    """By the mean of the choosers' scores."""
    return lambda contexts, max_k, generator: ranked(np.mean([*map(scores, contexts)], axis=0), max_k)


def _greedy_by(criterion: int) -> Ranking:
    """The best addition to those already chosen, again and again, by the losses or the divergences."""

    def ranking(contexts: Sequence["FarContext"], max_k: int, generator: np.random.Generator) -> np.ndarray:
        added = [context.first_additions for context in contexts]
        chosen_TK = ranked(-np.mean([values[criterion] for values in added], axis=0), 1)
        while chosen_TK.shape[1] < max_k:
            added = [context.measured_additions(chosen_TK) for context in contexts]
            next_T1 = ranked(-np.mean([values[criterion] for values in added], axis=0), 1)
            chosen_TK = np.concatenate([chosen_TK, next_T1], axis=1)
        return chosen_TK

    return ranking


def _random(contexts: Sequence["FarContext"], max_k: int, generator: np.random.Generator) -> np.ndarray:
    num_far_T = contexts[0].num_far_tokens_T
    draws_TF = generator.random((len(num_far_T), num_far_T[-1]))
    return ranked(np.where(np.arange(num_far_T[-1]) < num_far_T[:, None], draws_TF, np.nan), max_k)


def _nearest(contexts: Sequence["FarContext"], max_k: int, generator: np.random.Generator) -> np.ndarray:
    return contexts[0].num_far_tokens_T[:, None] - 1 - np.arange(max_k)


def _both(
    search: str, scores: "Callable[[FarContext], Sequence[np.ndarray]]",
    cost: Callable[[RuleCosts, int], int], criteria: Mapping[str, Sees] = _CRITERIA, **more: Any,
) -> list[Rule]:  # fmt: skip
    """A search by either criterion; `scores` are by the loss and by the divergence."""

    def by(criterion: int) -> Ranking:
        return _by(lambda far: scores(far)[criterion])

    return [
        Rule(search + ending, sees, by(criterion), cost, **more)
        for criterion, (ending, sees) in enumerate(criteria.items())
    ]


_ROWS = (
    # Necessity: what leaving the token out of the long context costs; how far it moves the prediction.
    *_both(
        "leave_one_out", lambda far: far.necessity, RuleCosts.removals
    ),
    # Sufficiency: what the token alone, beside the short context, gives. Takes every copy of one evidence.
    *_both(
        "add_one_in", lambda far: [-values for values in far.first_additions], RuleCosts.additions,
        builds_up=True,
    ),
    # The same, given those already chosen: of redundant evidence it takes one copy and goes on. It fits what
    # it looks at best of all, with or without a dependency.
    Rule("greedy", "answer", _greedy_by(0), RuleCosts.greedy, (REMOVE,), builds_up=True),
    Rule("greedy_divergence", "prediction", _greedy_by(1), RuleCosts.greedy, (REMOVE,), builds_up=True),
    # First-order estimate of leave_one_out, by a gate that multiplies exp(score) of every attention edge into
    # the token. It saturates: where a token has nearly all attention and the model is sure, the derivative
    # vanishes though removal costs most.
    Rule(
        "gradient", "answer", _by(lambda far: -far.gate_gradient_TF), RuleCosts.one_pass,
        reads_everything=True,
    ),
    # The divergence is least, 0, where nothing is left out, so its first derivative vanishes; half the mean
    # square of the loss's derivative, over answers drawn from the prediction, is the second.
    Rule(
        "gradient_divergence", "prediction", _by(lambda far: far.gate_information_TF),
        lambda costs, k: NUM_SAMPLED_ANSWERS * costs.one_pass(), reads_everything=True,
    ),
    # What the row that predicts the target attends to most, mean over layers and heads; no rollout.
    Rule(
        "attention", "attention", _by(lambda far: far.attention_TF), RuleCosts.one_pass,
        reads_everything=True,
    ),
    Rule(
        "attention_rollout", "attention", _by(lambda far: far.attention_rollout_TF), RuleCosts.one_pass,
        reads_everything=True,
    ),
    Rule("random", "nothing", _random, lambda costs, k: 0),
    Rule("nearest", "nothing", _nearest, lambda costs, k: 0),
)  # fmt: skip
RULES: dict[str, Rule] = {rule.name: rule for rule in _ROWS}
"""name -> rule."""
LEAVE_ONE_OUT_RULES = ("leave_one_out", "leave_one_out_divergence")
"""Rules that leave each token out in turn."""


def find_rule(name: str) -> Rule:
    """The rule called `name`; InputError where there is none."""
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    return RULES[name]


def selected_positions(
    far_context: "FarContext", rule: str, max_k: int, seed: Sequence[int],
    other_choosers: Sequence["FarContext"] = (),
) -> np.ndarray:  # fmt: skip
    """The `max_k` tokens that `rule` ranks first, most influential first: int64 [T, K].

    The same seed draws the same positions in the own far context and in its null.

    Args:
        other_choosers: the same far context as other models read it; the mean of all their scores ranks.
    """
    return find_rule(rule).ranking([far_context, *other_choosers], max_k, np.random.default_rng(seed))


def studied_numbers(
    rule: str, ks: Sequence[int], smallest_far_context: int, screen: int | None = None
) -> list[int]:
    """The numbers of tokens that a rule is studied at: those asked for, ascending.

    Of the controls, whose order costs nothing, also every power of two up to the whole far context, to tell
    how many of the nearest tokens do what a few chosen ones do. Of screened rules too: their far context is
    long, and what lies between the largest number asked for and all of it would not be known.
    """
    if rule not in CONTROLS and (screen is None or rule not in LEAVE_ONE_OUT_RULES):
        return sorted(set(ks))
    powers = {1 << exponent for exponent in range(smallest_far_context.bit_length())}
    return sorted({*ks, *powers, smallest_far_context})


def screen_of(lengths: ContextLengths, num_blocks: int | None, rules: Collection[str]) -> int | None:
    """How many blocks a round leaves out for these rules, given --screen; None: every token, or nothing."""
    if num_blocks is not None and num_blocks < FEWEST_BLOCKS:
        raise InputError(f"--screen {num_blocks} is too few: give {FEWEST_BLOCKS} blocks at least")
    if num_blocks is None and lengths.long_context_length > LONGEST_EXACT:
        num_blocks = BLOCKS + lengths.targets_per_chunk
    leaves_out = any(rule in LEAVE_ONE_OUT_RULES for rule in rules)
    is_whole = num_blocks is None or num_blocks >= lengths.num_far_tokens_T[0]
    return num_blocks if leaves_out and not is_whole else None


def refuse_rules(
    rules: Collection[str], *, intervention: str, largest_k: int, smallest_far_context: int
) -> None:  # fmt: skip
    """Refuse what cannot be asked for together, in the words of the flags (InputError)."""
    for rule in map(find_rule, rules):
        if intervention == BACKGROUND and BACKGROUND not in rule.interventions:
            able = ", ".join(name for name, one in RULES.items() if BACKGROUND in one.interventions)
            raise InputError(
                f"--intervention background has no meaning for rule {rule.name}; it is for {able}; choose of"
                " these, or say --intervention remove"
            )
    if largest_k > smallest_far_context:
        raise InputError(
            f"--k {largest_k} is more than the {smallest_far_context} far-context tokens of the first target:"
            " choose a smaller k, a longer long context or fewer targets a chunk"
        )
