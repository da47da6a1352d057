"""Selection rules: which k tokens of the far context are called influential.

A rule ranks the far context of every target; S_k is its first k, so the S_k are nested. The paper selects
by its Eq. 20, whose text is not among our sources; `leave_one_out` is our reading of it, and results say
which rule was used. Every rule works on a chunk's own far context and on its null alike.

Costs (computed in `pipeline/studies/rule_costs.py`) are token-forwards (tokens run through the network) a
target, for one far context: with s the short context, F the target's far context, n = l - 1 the tokens before
the last target and m the targets of a chunk. The null's sequences hold other numbers of rows; the formulas
are the own far context's.

Shapes: T targets, F far-context positions (of the last target), K the largest k, k the size of a set.
"""

from collections.abc import Callable
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import InputError, unknown_name

if TYPE_CHECKING:
    from pipeline.influence.far_context import FarContext

Rule = Callable[["FarContext", int, np.random.Generator], np.ndarray]


def leave_one_out(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens whose removal raises the target's loss most: loss(t | long without i) - loss(t | long).

    It looks at the target, so it needs the null beside it (README.md). Cost: the leave-one-out passes,
    (n + sum over i < F of n - 1 - i) / m, about l^2 / 2m, with F the last target's; batching adds an
    eighth at most.
    """
    return ranked(context.influence_TF, max_k)


def leave_one_out_search(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """`leave_one_out` among the tokens that a search left out exactly; some of the largest may be missed.

    It looks at the target. Estimates that run few rows again say which tokens are left out
    (`leave_one_out_search.py`). How many of leave_one_out's it finds at what cost is measured by
    tests/benchmarks/search_recall.py. Cost: the search budget, a share of leave_one_out's; batching adds an
    eighth at most.
    """
    return ranked(context.searched_influence_TF, max_k)


def add_one_in(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens that alone, beside the short context, help most: loss(t | short) - loss(t | short and i).

    It looks at the target. It takes every copy of the same evidence. Cost: F (s + 1).
    """
    return ranked(-context.first_addition_losses_TF, max_k)


def greedy(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """`add_one_in` repeated: each next token is the best addition to those already chosen.

    It looks at the target, at k times as many alternatives as the others. Of redundant evidence it takes one
    copy and goes on. Cost: the sum over j = 1 ... k of (F - j + 1) (s + j).
    """
    chosen_TK = ranked(-context.first_addition_losses_TF, 1)
    while chosen_TK.shape[1] < max_k:
        best_T1 = ranked(-context.addition_losses(chosen_TK), 1)
        chosen_TK = np.concatenate([chosen_TK, best_T1], axis=1)
    return chosen_TK


def gradient(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """First-order estimate of leave_one_out: minus the derivative of the loss by a gate on each token.

    The gate multiplies exp(score) of every attention edge into the token: closing it removes the token. It
    looks at the target, and saturates: where a token has nearly all attention and the model is sure, the
    derivative vanishes though removal costs most. Cost: n / m, and one backward pass through n tokens.
    """
    return ranked(-context.gate_gradient_TF, max_k)


def attention(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens that the row predicting the target attends to most, mean over layers and heads; no rollout.

    Blind to the target. Cost: n / m.
    """
    return ranked(context.attention_TF, max_k)


def divergence(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens whose removal moves the whole prediction most: KL(p(.|long) || p(.|long without i)).

    Blind to the target, so its S_k is honest by construction. Cost: the passes of leave_one_out, shared.
    """
    return ranked(context.divergence_TF, max_k)


def random(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """Control: tokens drawn uniformly without replacement. Cost: none."""
    num_far_T = context.num_far_tokens_T
    draws_TF = generator.random((len(num_far_T), num_far_T[-1]))
    return ranked(np.where(np.arange(num_far_T[-1]) < num_far_T[:, None], draws_TF, np.nan), max_k)


def nearest(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """Control: the tokens right before the short context. Cost: none."""
    return context.num_far_tokens_T[:, None] - 1 - np.arange(max_k)


def ranked(scores_TF: np.ndarray, max_k: int) -> np.ndarray:
    """Positions of the `max_k` largest scores, largest first, the nearer of equals first: int64 [T, K].

    NaN is no candidate.
    """
    # A stable sort keeps the order of equals, so sorting from the nearest token on breaks ties rightly.
    nearest_first_TF = np.where(np.isnan(scores_TF), -np.inf, scores_TF)[:, ::-1]
    order_TK = np.argsort(-nearest_first_TF, axis=1, kind="stable")[:, :max_k]
    return scores_TF.shape[1] - 1 - order_TK


RULES: dict[str, Rule] = {
    "leave_one_out": leave_one_out,
    "leave_one_out_search": leave_one_out_search,
    "add_one_in": add_one_in,
    "greedy": greedy,
    "gradient": gradient,
    "attention": attention,
    "divergence": divergence,
    "random": random,
    "nearest": nearest,
}
"""name -> rule(context, max_k, generator) -> positions_TK.

context: the far context; every target's holds at least max_k tokens. generator: of the rules that draw.
positions_TK: int64 [T, K], most influential first, no position twice; ties go to the nearer token.
"""

DEFAULT_RULES = ("leave_one_out", "random", "nearest")
LEAVE_ONE_OUT_RULES = ("leave_one_out", "divergence", "leave_one_out_search")
"""Rules that leave a token out, so that the intervention matters to them."""


def find_rule(name: str) -> Rule:
    """The rule called `name`.

    Raises:
        InputError: there is none; names the nearest.
    """
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    return RULES[name]


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
        losses_N = context.losses_with(np.full(len(sets_Nk), target_index), sets_Nk)
        best.append(sets_Nk[losses_N.argmin()])
    return np.stack(best)
