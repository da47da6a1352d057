"""From scores to an order of the far tokens.

Shapes: T targets, F far-context positions (of the last target), K the largest k.

Selection rules: which k tokens of the far context are called influential.

A rule ranks the far context of every target; S_k is its first k, so the S_k are nested. The paper selects
by its Eq. 20, whose text is not among our sources; `leave_one_out` is our reading of it, and results say
which rule was used. Every rule works on a chunk's own far context and on its null alike.

A rule is a search and a criterion. The criterion is the target's loss (the plain name), which sees the
answer, or how far the whole prediction is from that of the long context (the name with `_divergence`), which
does not. A choice of few tokens among hundreds carries more information than the effect that it is to
explain, so that every search nearly reaches what it optimises; its null says how nearly, and only the excess
is an effect.

Costs (computed in `pipeline/measuring/rules.py`) are token-forwards (tokens run through the network) a
target, for one far context: with s the short context, F the target's far context, n = l - 1 the tokens before
the last target and m the targets of a chunk. The null's sequences hold other numbers of rows; the formulas
are the own far context's, of the intervention `remove`.

Shapes: T targets, F far-context positions (of the last target), K the largest k, k the size of a set.

What is asked of one text, and which of its tokens are measured. No torch: a refusal is quick.

What may be asked of rules together, refused in a sentence before anything is measured.

What each selection rule costs, in token-forwards: the formulas of pipeline/measuring/rules.py.

They count the own far context of one chunk; the null's sequences hold other numbers of rows. What all rules
share (the long, short and sparse-context losses) is not in them. A test counts what really runs.

Words: s short context, l long context (chunk), m targets a chunk, n = l - 1 tokens before the last target,
F far-context tokens of a target.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Literal

import numpy as np

from pipeline.cli import InputError, unknown_name
from pipeline.measuring.flags import ContextLengths
from pipeline.results.schemas import MIMICRY, SELECTION

if TYPE_CHECKING:
    from pipeline.measuring.contexts import Criterion
    from pipeline.measuring.far_context import FarContext


def ranked(scores_TF: np.ndarray, max_k: int) -> np.ndarray:
    """Positions of the `max_k` largest scores, largest first, the nearer of equals first: int64 [T, K].

    NaN is no candidate.
    """
    # A stable sort keeps the order of equals, so sorting from the nearest token on breaks ties rightly.
    nearest_first_TF = np.where(np.isnan(scores_TF), -np.inf, scores_TF)[:, ::-1]
    order_TK = np.argsort(-nearest_first_TF, axis=1, kind="stable")[:, :max_k]
    return scores_TF.shape[1] - 1 - order_TK


Sees = Literal["answer", "prediction", "attention", "nothing"]
Ranking = Callable[["FarContext", int, np.random.Generator], np.ndarray]

REMOVE, SUBSTITUTE, BACKGROUND = "remove", "substitute", "background"
INTERVENTIONS = (REMOVE, SUBSTITUTE, BACKGROUND)
"""What becomes of a token that is left out: nothing is there; a token drawn from the training tokens; or
another document's, in `background` of the whole far context but for S_k."""


@dataclass(frozen=True)
class Rule:
    """A search, its criterion, and what that means for the null."""

    name: str
    ranking: Ranking
    sees: Sees
    """Of the target: its loss; the model's whole prediction of it; where its query looks; nothing."""
    interventions: tuple[str, ...] = (REMOVE,)
    """Those that it can be asked for under."""
    needs: str | None = None
    """A package that is not always installed."""
    reads_everything: bool = False
    """Whether it leaves nothing out, but looks at the long context as it is."""
    builds_up: bool = False
    """Whether it looks for tokens that together give the prediction, instead of those that it misses."""

    def __call__(self, context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
        """The first `max_k` tokens: int64 [T, K], most influential first, no position twice.

        Ties go to the nearer token.

        Args:
            context: the far context; every target's holds at least `max_k` tokens.
            generator: of the rules that draw.
        """
        return self.ranking(context, max_k, generator)

    @property
    def is_installed(self) -> bool:
        """Whether all that it needs is."""
        return self.needs is None or find_spec(self.needs) is not None

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


def _leave_one_out(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens whose removal raises the target's loss most: loss(t | long without i) - loss(t | long).

    It looks at the target, so it needs its null beside it. Cost: the leave-one-out passes,
    (n + sum over i < F of n - 1 - i) / m, about l^2 / 2m, with F the last target's; batching adds an
    eighth at most.
    """
    return ranked(context.influence_TF, max_k)


def _leave_one_out_divergence(
    context: "FarContext", max_k: int, generator: np.random.Generator
) -> np.ndarray:
    """The tokens whose removal moves the whole prediction most: KL(p(.|long) || p(.|long without i)).

    Blind to the target. Cost: the passes of leave_one_out, shared.
    """
    return ranked(context.divergence_TF, max_k)


def _additions(
    context: "FarContext", criterion: "Criterion", chosen_TK: np.ndarray | None = None
) -> np.ndarray:
    measured = context.first_additions if chosen_TK is None else context.measured_additions(chosen_TK)
    return np.asarray(getattr(measured, criterion))


def _add_one_in(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens that alone, beside the short context, help most: loss(t | short) - loss(t | short and i).

    It looks at the target. It takes every copy of the same evidence. Cost: F s, and the far tokens alone,
    F / m with F the last target's, for all rules that add tokens.
    """
    return ranked(-_additions(context, "losses"), max_k)


def _add_one_in_divergence(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens that alone, beside the short context, bring the prediction nearest to the long context's.

    Blind to the target; it fits the prediction. Cost: the passes of add_one_in, shared.
    """
    return ranked(-_additions(context, "divergences"), max_k)


def _greedy(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """`add_one_in` repeated: each next token is the best addition to those already chosen.

    It looks at the target, at k times as many alternatives as the others. Of redundant evidence it takes one
    copy and goes on. Cost: the sum over j = 1 ... k of (F - j + 1) (s + j - 1), and add_one_in's far tokens
    alone.
    """
    return _repeated(context, max_k, "losses")


def _greedy_divergence(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """`add_one_in_divergence` repeated, given those already chosen.

    Blind to the target; of all it fits the prediction best, with or without a dependency. Cost: as greedy.
    """
    return _repeated(context, max_k, "divergences")


def _repeated(context: "FarContext", max_k: int, criterion: "Criterion") -> np.ndarray:
    chosen_TK = ranked(-_additions(context, criterion), 1)
    while chosen_TK.shape[1] < max_k:
        best_T1 = ranked(-_additions(context, criterion, chosen_TK), 1)
        chosen_TK = np.concatenate([chosen_TK, best_T1], axis=1)
    return chosen_TK


def _banzhaf(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens that lower the loss most on average over random subsets of the far context.

    It looks at the target, though no single context can be fitted (`random_subsets.py`). Cost:
    N (F + m s) / m for N subsets, with F the last target's.
    """
    return ranked(context.subset_effects.losses, max_k)


def _banzhaf_divergence(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens that on average bring the prediction nearest to the long context's, in random subsets.

    Blind to the target; it fits the prediction, on average. Cost: the passes of banzhaf, shared.
    """
    return ranked(context.subset_effects.divergences, max_k)


def _gradient(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """First-order estimate of leave_one_out: minus the derivative of the loss by a gate on each token.

    The gate multiplies exp(score) of every attention edge into the token: closing it removes the token. It
    looks at the target, and saturates: where a token has nearly all attention and the model is sure, the
    derivative vanishes though removal costs most. Cost: n / m, and one backward pass through n tokens.
    """
    return ranked(-context.gate_gradient_TF, max_k)


def _gradient_divergence(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """Lowest-order estimate of leave_one_out_divergence: the Fisher information of the gate on each token.

    The divergence is least, 0, where nothing is left out, so its first derivative vanishes; half the mean
    square of the loss's derivative, over answers drawn from the prediction, is the second. Blind to the
    target. Cost: n / m a drawn answer, and one backward pass through n tokens for each.
    """
    return ranked(context.gate_information_TF, max_k)


def _attention(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens that the row predicting the target attends to most, mean over layers and heads; no rollout.

    Blind to the target. Cost: n / m.
    """
    return ranked(context.attention_TF, max_k)


def _random(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """Control: tokens drawn uniformly without replacement. Cost: none."""
    num_far_T = context.num_far_tokens_T
    draws_TF = generator.random((len(num_far_T), num_far_T[-1]))
    return ranked(np.where(np.arange(num_far_T[-1]) < num_far_T[:, None], draws_TF, np.nan), max_k)


def _nearest(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """Control: the tokens right before the short context. Cost: none."""
    return context.num_far_tokens_T[:, None] - 1 - np.arange(max_k)


def _method(
    name: str,
    sees: Sees,
    *,
    reads_everything: bool = False,
    builds_up: bool = False,
    needs: str | None = None,
) -> Rule:
    """The rule that the function of this name in `methods.py` defines: scores of the far tokens, [T, F].

    Imported when the rule is first used: a --help needs no model.
    """

    def ranking(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
        return ranked(getattr(import_module("pipeline.measuring.methods"), name)(context), max_k)

    return Rule(
        name, ranking, sees, _ADDING, reads_everything=reads_everything, builds_up=builds_up, needs=needs
    )


_ADDING = (REMOVE, BACKGROUND)
RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("leave_one_out", _leave_one_out, "answer", INTERVENTIONS),
        Rule("leave_one_out_divergence", _leave_one_out_divergence, "prediction", INTERVENTIONS),
        Rule("add_one_in", _add_one_in, "answer", _ADDING, builds_up=True),
        Rule("add_one_in_divergence", _add_one_in_divergence, "prediction", _ADDING, builds_up=True),
        Rule("greedy", _greedy, "answer", builds_up=True),
        Rule("greedy_divergence", _greedy_divergence, "prediction", builds_up=True),
        Rule("banzhaf", _banzhaf, "answer", _ADDING, builds_up=True),
        Rule("banzhaf_divergence", _banzhaf_divergence, "prediction", _ADDING, builds_up=True),
        Rule("gradient", _gradient, "answer", _ADDING, reads_everything=True),
        Rule("gradient_divergence", _gradient_divergence, "prediction", _ADDING, reads_everything=True),
        Rule("attention", _attention, "attention", _ADDING, reads_everything=True),
        _method("input_x_gradient", "answer", reads_everything=True, needs="captum"),
        _method("integrated_gradients", "answer", reads_everything=True, needs="captum"),
        _method("attention_rollout", "attention", reads_everything=True),
        _method("learned_attention", "attention", reads_everything=True),
        _method("learned_attention_divergence", "attention", reads_everything=True),
        _method("context_length_probing", "answer", builds_up=True),
        _method("context_length_probing_divergence", "prediction", builds_up=True),
        _method("surrogate", "answer", builds_up=True),
        _method("surrogate_divergence", "prediction", builds_up=True),
        Rule("random", _random, "nothing", _ADDING),
        Rule("nearest", _nearest, "nothing", _ADDING),
    )
}
"""name -> rule."""

CONTROLS = ("random", "nearest")
DEFAULT_RULES = ("leave_one_out_divergence", "leave_one_out", *CONTROLS)
"""First the one that stood the trial of the measures, within `DEFAULT_INTERVENTION` (analysis/LOG.md)."""
DEFAULT_INTERVENTION = BACKGROUND
DEFAULT_KS = (1, 2, 4, 8, 16)
"""Numbers of influential tokens studied, where nothing else is asked for."""
NUM_SUBSETS = 64
"""Of rules banzhaf* and surrogate*, where nothing else is asked for."""
MOST_SUBSETS = 1 << 16
KEPT_FRACTION = 0.5
"""Of rules surrogate*, where nothing else is asked for."""
LEARNING_CHUNKS = 32
"""Of rules learned_attention*, where nothing else is asked for."""
LEAVE_ONE_OUT_RULES = tuple(name for name, rule in RULES.items() if SUBSTITUTE in rule.interventions)
"""Rules that leave a token out, so that `substitute` matters to them."""


def find_rule(name: str) -> Rule:
    """The rule called `name`.

    Raises:
        InputError: there is none; names the nearest. Or what it needs is not installed.
    """
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    if not RULES[name].is_installed:
        raise InputError(
            f"rule '{name}' needs {RULES[name].needs}, which is not installed: pip install '.[attribution]'"
            " brings it; or leave the rule out of --rules"
        )
    return RULES[name]


def studied_numbers(rule: str, asked: Sequence[int], smallest_far_context: int) -> list[int]:
    """The numbers of tokens that a rule is studied at: those asked for, ascending.

    Of the controls, whose order costs nothing, also every power of two up to the whole far context, to tell
    how many of the nearest tokens do what a few chosen ones do.
    """
    if rule not in CONTROLS:
        return sorted(set(asked))
    powers = {1 << exponent for exponent in range(smallest_far_context.bit_length())}
    return sorted({*asked, *powers, smallest_far_context})


def exhaustive(context: "FarContext", k: int, max_subsets: int = 10_000) -> np.ndarray:
    """The k far tokens that together lower the loss most, among all subsets of that size: int64 [T, k].

    The oracle of the tests. The sets of different k are not nested, so they have no ranks, and no place
    among `RULES`; positions come nearest first, and of equally good sets the nearer. Cost: C(F, k) (s + k).

    Raises:
        InputError: the last target has more than `max_subsets` subsets.
    """
    num_far_T = context.num_far_tokens_T
    num_subsets = comb(int(num_far_T[-1]), k)
    if num_subsets > max_subsets:
        raise InputError(
            f"exhaustive selection of {k} tokens among {num_far_T[-1]} would try {num_subsets} subsets for a"
            f" target, more than {max_subsets}; choose a smaller k or a shorter long context"
        )
    best = []
    for target_index, num_far in enumerate(num_far_T):
        sets_Nk = np.array(list(combinations(range(num_far - 1, -1, -1), k)))
        measured = context.measured_with(np.full(len(sets_Nk), target_index), sets_Nk)
        best.append(sets_Nk[measured.losses.argmin()])
    return np.stack(best)


EXPLAIN_SHORT_CONTEXT_LENGTH = 16
EXPLAIN_KS = (1, 4)
EXPLAIN_RULES = ("leave_one_out_divergence",)
"""One pass a left-out token serves every target, and what it chooses, blind to the answer, needs no null."""
_OF_STUDIES = {
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
    short_context_length: int = EXPLAIN_SHORT_CONTEXT_LENGTH
    """s, tokens."""
    long_context_length: int | None = None
    """Tokens of the text that are measured; None: as many as text and model have."""
    num_targets: int | None = None
    """The last so many tokens are predicted; None: all that have a far context of max(ks) tokens."""
    rules: Sequence[str] = EXPLAIN_RULES
    ks: Sequence[int] = EXPLAIN_KS
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


def refuse_intervention(rules: Collection[str], intervention: str) -> None:
    """Do nothing where the intervention makes sense for these rules.

    Raises:
        InputError: it would change nothing, or one of them has no meaning under it.
    """
    if intervention == SUBSTITUTE and not set(LEAVE_ONE_OUT_RULES) & set(rules):
        raise InputError(
            "--intervention substitute would change nothing: of --rules only"
            f" {', '.join(LEAVE_ONE_OUT_RULES)} leave tokens out; add one, or say --intervention remove"
        )
    if intervention == BACKGROUND:
        able = [name for name, rule in RULES.items() if BACKGROUND in rule.interventions]
        if unable := [name for name in rules if name not in able]:
            raise InputError(
                f"--intervention background has no meaning for rule {unable[0]}; it is for {', '.join(able)};"
                " choose of these, or say --intervention remove"
            )


def refuse_subsets(rules: Collection[str], num_subsets: int, max_k: int) -> None:
    """Do nothing where there are enough random subsets for these rules, in pairs.

    Raises:
        InputError: their number is odd, or below the largest k of a rule that fits a sparse linear model.
    """
    if num_subsets % 2:
        raise InputError(f"--num-subsets {num_subsets}: subsets come in pairs; choose an even number")
    for rule in rules:
        if rule.startswith("surrogate") and num_subsets < max_k:
            raise InputError(
                f"--num-subsets {num_subsets} tells rule {rule} of at most {num_subsets} tokens, and --k asks"
                f" for {max_k}; choose at least as many subsets"
            )


_GREEDY = ("greedy", "greedy_divergence")
_ADDING_RULE_COSTS = ("add_one_in", "add_one_in_divergence", *_GREEDY)
"""Of these the far tokens alone are read once, and the first round is shared."""


def _kind(rule: str) -> str:
    """Rules of one kind share all their passes: a search by either criterion."""
    return rule if rule == "gradient_divergence" else rule.removesuffix("_divergence")


@dataclass(frozen=True)
class RuleCosts:
    """Costs under given lengths, all in tokens."""

    short_context_length: int
    long_context_length: int
    targets_per_chunk: int
    intervention: str = REMOVE
    num_backgrounds: int = 1
    """Foreign documents, under the intervention `background`."""
    num_subsets: int = NUM_SUBSETS
    """Of the rules banzhaf* and surrogate*."""
    num_sampled_answers: int = 8
    """Of the rule gradient_divergence."""
    num_integration_steps: int = 20
    """Of the rule integrated_gradients."""

    def token_forwards_per_target(self, rule: str, k: int) -> float:
        """Tokens run through the network to choose the first k tokens, a target.

        Raises:
            InputError: there is no rule of this name.
        """
        return self.token_forwards(rule, k) / self.targets_per_chunk

    def token_forwards(self, rule: str, k: int) -> int:
        """The same for all targets of a chunk together.

        Raises:
            InputError: there is no rule of this name.
        """
        if rule not in (*RULES, "exhaustive"):
            raise unknown_name("rule", rule, (*RULES, "exhaustive"))
        of_kind = {
            "leave_one_out": self._leave_one_out(),
            "add_one_in": self._add_one_in(),
            "greedy": self._greedy(k),
            "banzhaf": self._subsets(),
            "gradient": self._num_before,
            "gradient_divergence": self.num_sampled_answers * self._num_before,
            "attention": self._num_before,
            "context_length_probing": self._context_length_probing(),
            "surrogate": self._subsets(),
            "input_x_gradient": self.targets_per_chunk * self._num_before,
            "integrated_gradients": (self.num_integration_steps * self.targets_per_chunk * self._num_before),
            "attention_rollout": self._num_before,
            "learned_attention": self._num_before,
            "random": 0,
            "nearest": 0,
            "exhaustive": self._exhaustive(k),
        }
        return of_kind[_kind(rule)]

    def token_forwards_together(self, rules: Collection[str], k: int) -> int:
        """Of several rules at once: those of a kind share all their passes.

        The first round of the greedy rules is add_one_in's, of either criterion.
        """
        kinds = {_kind(rule): rule for rule in rules if rule not in _ADDING_RULE_COSTS}
        shared = sum(self.token_forwards(rule, k) for rule in kinds.values())
        adding = [rule for rule in rules if rule in _ADDING_RULE_COSTS]
        if not adding:
            return shared
        num_greedy = sum(rule in _GREEDY for rule in adding)
        further_rounds = num_greedy * sum(map(self._round, range(2, k + 1)))
        return shared + self._add_one_in() + further_rounds

    def backward_tokens_per_target(self, rule: str) -> int:
        """Tokens that backward passes run through to choose any number of tokens, a target."""
        passes = {
            "gradient": 1,
            "gradient_divergence": self.num_sampled_answers,
            "input_x_gradient": 1,
            "integrated_gradients": self.num_integration_steps,
        }
        return passes.get(rule, 0) * self._num_before

    @property
    def num_far_tokens(self) -> range:
        """F of each target of a chunk."""
        num_short_of_last = self.long_context_length - self.short_context_length
        return range(num_short_of_last - self.targets_per_chunk, num_short_of_last)

    @property
    def _num_before(self) -> int:
        return self.long_context_length - 1

    def one_removal_a_pass(self, *, substitute: bool = False) -> int:
        """n, then the n - 1 - i tokens after removal i of the F of the last target, each anew.

        Removals that run together run up to an eighth more. A substitution runs one token more.
        """
        num_far = self.num_far_tokens[-1]
        after_removals = sum(self._num_before - 1 - i for i in range(num_far))
        return self._num_before + after_removals + (num_far if substitute else 0)

    def foreign_context(self) -> int:
        """All targets in a foreign far context, which is read once for each of the packed sequences."""
        return sum(rows for rows, _ in self._packed_sequences())

    def sparse_contexts(self, rules: Collection[str], ks: Sequence[int]) -> int:
        """Every studied number of tokens of every rule: beside the short context, or in each background.

        A background is read once up to the last far token, and for each set again from its first token on:
        of k tokens spread evenly about the (F - k) / (k + 1)-th, of the nearest ones the (F - k)-th.
        """
        fewest, short = self.num_far_tokens[0], self.short_context_length
        numbers = [(rule, k) for rule in rules for k in studied_numbers(rule, ks, fewest)]
        if self.intervention != BACKGROUND:
            return self.targets_per_chunk * sum(short + k for _, k in numbers)
        again = sum(
            short + k if rule == "nearest" else short + num_far - (num_far - k) / (k + 1)
            for rule, k in numbers
            for num_far in self.num_far_tokens
        )
        return self.num_backgrounds * (self.num_far_tokens[-1] + round(again))

    def _leave_one_out(self) -> int:
        """Under `background` a token is replaced by each foreign document's in turn."""
        if self.intervention != BACKGROUND:
            return self.one_removal_a_pass(substitute=self.intervention == SUBSTITUTE)
        replacements = self.one_removal_a_pass(substitute=True) - self._num_before
        return self._num_before + self.num_backgrounds * replacements

    def _add_one_in(self) -> int:
        """Under `background` a token is restored in a foreign far context, one pass for all targets."""
        if self.intervention != BACKGROUND:
            return self._greedy(1)
        restored = sum(rows + sum(rows - i for i in range(far)) for rows, far in self._packed_sequences())
        return self.num_backgrounds * restored

    def _subsets(self) -> int:
        """A pass a subset over the packed sequences; under `background` a foreign document."""
        num_rows = self.foreign_context()
        of_each = self.num_backgrounds if self.intervention == BACKGROUND else 1
        return of_each * self.num_subsets * num_rows

    def _context_length_probing(self) -> int:
        """A pass from each start on, but the first and the last; a background is read before."""
        last = self.num_far_tokens[-1]
        from_each_start = sum(self._num_before - start for start in range(1, last))
        if self.intervention != BACKGROUND:
            return from_each_start
        return self.num_backgrounds * (max(0, last - 1) + from_each_start)

    def _packed_sequences(self) -> list[tuple[int, int]]:
        """Rows and far rows of each of the null's sequences, whose windows take about as many rows as it."""
        short, num_targets = self.short_context_length, self.targets_per_chunk
        asked = max(1, round(num_targets * short / self.num_far_tokens[-1]))
        parts = np.array_split(self.num_far_tokens, min(asked, num_targets))
        return [(int(part[-1]) + short * len(part), int(part[-1])) for part in parts]

    def _greedy(self, k: int) -> int:
        """The far tokens alone, once, and k rounds."""
        return self.num_far_tokens[-1] + sum(map(self._round, range(1, k + 1)))

    def _round(self, j: int) -> int:
        """Every candidate beside s + j - 1 tokens: the first of them is looked up."""
        num_tried = sum(num_far - j + 1 for num_far in self.num_far_tokens)
        return num_tried * (self.short_context_length + j - 1)

    def _exhaustive(self, k: int) -> int:
        """Every subset of size k, beside the short context."""
        num_subsets = sum(comb(num_far, k) for num_far in self.num_far_tokens)
        return num_subsets * (self.short_context_length + k)
