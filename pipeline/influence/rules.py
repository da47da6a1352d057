"""Selection rules: which k tokens of the far context are called influential.

A rule ranks the far context of every target; S_k is its first k, so the S_k are nested. The paper selects
by its Eq. 20, whose text is not among our sources; `leave_one_out` is our reading of it, and results say
which rule was used. Every rule works on a chunk's own far context and on its null alike.

A rule is a search and a criterion. The criterion is the target's loss (the plain name), which sees the
answer, or how far the whole prediction is from that of the long context (the name with `_divergence`), which
does not. A choice of few tokens among hundreds carries more information than the effect that it is to
explain, so that every search nearly reaches what it optimises; its null says how nearly, and only the excess
is an effect.

Costs (computed in `pipeline/studies/rule_costs.py`) are token-forwards (tokens run through the network) a
target, for one far context: with s the short context, F the target's far context, n = l - 1 the tokens before
the last target and m the targets of a chunk. The null's sequences hold other numbers of rows; the formulas
are the own far context's, of the intervention `remove`.

Shapes: T targets, F far-context positions (of the last target), K the largest k, k the size of a set.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Literal

import numpy as np

from pipeline.errors import InputError, unknown_name
from pipeline.influence.ranking import ranked
from pipeline.results.names import EARLIER_RULES, MIMICRY, SELECTION

if TYPE_CHECKING:
    from pipeline.influence.context_loss import Criterion
    from pipeline.influence.far_context import FarContext

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


def _leave_one_out_search(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """`leave_one_out` among the tokens that a search left out exactly; some of the largest may be missed.

    It looks at the target. Estimates that run few rows again say which tokens are left out
    (`leave_one_out_search.py`). How many of leave_one_out's it finds at what cost is measured by
    tests/benchmarks/search_recall.py. Cost: the search budget, a share of leave_one_out's; batching adds an
    eighth at most.
    """
    return ranked(context.searched_influence_TF, max_k)


def _additions(
    context: "FarContext", criterion: "Criterion", chosen_TK: np.ndarray | None = None
) -> np.ndarray:
    from pipeline.influence.additions import additions  # late: a --help needs no model

    return additions(context, criterion, chosen_TK)


def _add_one_in(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens that alone, beside the short context, help most: loss(t | short) - loss(t | short and i).

    It looks at the target. It takes every copy of the same evidence. Cost: F s, and the far tokens alone,
    F / m with F the last target's, for all rules that add tokens; with a screen of the best c,
    (1 + c) s, and one backward pass through s tokens.
    """
    return ranked(-_additions(context, "losses"), max_k)


def _add_one_in_divergence(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens that alone, beside the short context, bring the prediction nearest to the long context's.

    Blind to the target; it fits the prediction. Cost: the passes of add_one_in, shared; with a screen, which
    is by the divergence then, as many of its own.
    """
    return ranked(-_additions(context, "divergences"), max_k)


def _greedy(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """`add_one_in` repeated: each next token is the best addition to those already chosen.

    It looks at the target, at k times as many alternatives as the others. Of redundant evidence it takes one
    copy and goes on. Cost: the sum over j = 1 ... k of (F - j + 1) (s + j - 1), of (1 + c) (s + j - 1) with a
    screen, and one backward pass through s + j - 1 tokens; add_one_in's far tokens alone.
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
    """The rule that a file of `methods/` defines: `name`, by the function of that name.

    It gives a far context's tokens their scores, [T, F]. With _divergence at its end, the name is of a
    function of the file without it. Imported when the rule is first used: a --help needs no model.
    """
    file = f"pipeline.influence.methods.{name.removesuffix('_divergence')}"

    def ranking(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
        return ranked(getattr(import_module(file), name)(context), max_k)

    return Rule(
        name, ranking, sees, _ADDING, reads_everything=reads_everything, builds_up=builds_up, needs=needs
    )


_ADDING = (REMOVE, BACKGROUND)
RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("leave_one_out", _leave_one_out, "answer", INTERVENTIONS),
        Rule("leave_one_out_divergence", _leave_one_out_divergence, "prediction", INTERVENTIONS),
        Rule("leave_one_out_search", _leave_one_out_search, "answer", (REMOVE, SUBSTITUTE)),
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
SEARCH_BUDGET = 0.2
"""Of rule leave_one_out_search, as a share of what leave_one_out takes, where nothing else is asked for."""
LEARNING_CHUNKS = 32
"""Of rules learned_attention*, where nothing else is asked for."""
SCREENED_RULES = ("add_one_in", "add_one_in_divergence", "greedy", "greedy_divergence")
"""Rules that try one token after another, so that a screen may say which are tried."""
LEAVE_ONE_OUT_RULES = tuple(name for name, rule in RULES.items() if SUBSTITUTE in rule.interventions)
"""Rules that leave a token out, so that `substitute` matters to them."""


def find_rule(name: str) -> Rule:
    """The rule called `name`.

    Raises:
        InputError: there is none; names the nearest. Or what it needs is not installed.
    """
    if name in EARLIER_RULES:
        raise InputError(f"rule '{name}' is called '{EARLIER_RULES[name]}' now")
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
