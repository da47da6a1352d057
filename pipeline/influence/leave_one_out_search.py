"""The tokens of largest influence for a share of the cost of every influence: estimate all, remove a few.

Removing token i changes every row after it, and leave_one_out runs them all again. Most of what i tells a
target passes through few of them: the row that predicts the target looks at i, or at a row near by that
looked at i, or at a row right after i. An estimate runs only those again and leaves all others as if they
still saw i (`estimated_losses.py`): tens of rows instead of half the sequence. The estimates are used for
their order alone. The tokens that come first for some target are then removed exactly, in the ordinary
passes, until the budget is spent: what is returned is exact, and what was not removed is not guessed at.

Shapes: S rows of the packed sequence, T targets, F far-context rows, R removed rows.
"""

import numpy as np

from pipeline.errors import InputError
from pipeline.influence.batching import Batching
from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.estimated_losses import Reruns, estimated_losses
from pipeline.influence.leave_one_out import PackedSequence, leave_each_out, null_contexts, own_context
from pipeline.models.causal_lm import CausalLM

ESTIMATES_SHARE = 0.25
"""What of the budget goes into the estimates, wider windows for a larger one; the rest into removals."""


def search_influences(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    budget: float,
    substitute_ids_L: np.ndarray | None = None,
) -> np.ndarray:
    """The influence of the tokens that the search removes, NaN for all others: float32 [T, F], nats.

    Args:
        budget: token-forwards to spend, as a share of those of leave_one_out; not less than `least_budget`.
            Batching adds an eighth at most to either.
        substitute_ids_L: as in `leave_each_out`.
    """
    is_substituted = substitute_ids_L is not None
    reruns = reruns_within(sequence, budget, is_substituted)
    losses_TF = estimated_losses(model, reruns, batching, substitute_ids_L)
    costs_F = removal_costs(sequence, is_substituted)
    left = budget * exhaustive_cost(sequence, is_substituted) - _cost_before_removals(reruns)
    rows_R = rows_to_remove(losses_TF, costs_F, left)
    return leave_each_out(
        model, sequence, batching, substitute_ids_L=substitute_ids_L, removed_rows_R=rows_R
    ).influence_TF


def reruns_within(sequence: PackedSequence, budget: float, is_substituted: bool = False) -> Reruns:
    """The widest windows whose estimates take `ESTIMATES_SHARE` of the budget at most, or no windows."""
    affordable = ESTIMATES_SHARE * budget * exhaustive_cost(sequence, is_substituted)
    reruns = Reruns(sequence, 0, is_substituted)
    while True:
        wider = Reruns(sequence, reruns.num_before_query + 1, is_substituted)
        if wider.cost == reruns.cost or wider.cost > affordable:
            return reruns
        reruns = wider


def rows_to_remove(scores_TF: np.ndarray, costs_F: np.ndarray, token_forwards: float) -> np.ndarray:
    """The far rows that are removed exactly, as many as `token_forwards` pay for, ascending: int64 [R].

    Targets take turns, since one pass serves them all: the row of each one's largest score first, then of
    its second largest, and so on.

    Args:
        scores_TF: NaN beyond a target's own far context.
        costs_F: token-forwards of leaving out each row.
    """
    order_TF = np.argsort(-np.nan_to_num(scores_TF, nan=-np.inf), axis=1, kind="stable")
    ranks_TF = np.where(np.isnan(scores_TF), scores_TF.shape[1], np.argsort(order_TF, axis=1))
    order_F = np.argsort(ranks_TF.min(0), kind="stable")
    return np.sort(order_F[costs_F[order_F].cumsum() <= token_forwards])


def removal_costs(sequence: PackedSequence, is_substituted: bool = False) -> np.ndarray:
    """Token-forwards of leaving out each far row exactly, the rows after it: int64 [F]."""
    num_rows, num_far = len(sequence.token_ids_S), int(sequence.num_far_tokens_T[-1])
    return num_rows - 1 + is_substituted - np.arange(num_far)


def exhaustive_cost(sequence: PackedSequence, is_substituted: bool = False) -> int:
    """Token-forwards of leave_one_out: of leaving out every far row, and of reading the sequence before."""
    costs_F = removal_costs(sequence, is_substituted)
    return len(sequence.token_ids_S) + int(costs_F.sum())


def _cost_before_removals(reruns: Reruns) -> int:
    """Token-forwards of the estimates, and of reading the sequence for the removals."""
    return reruns.cost + len(reruns.sequence.token_ids_S)


def least_budget(lengths: ContextLengths, max_k: int, is_substituted: bool = False) -> float:
    """The smallest budget at which every target has `max_k` influences measured, whatever the tokens.

    `max_k` removals in the first target's far context serve all targets; the rows beyond it do not.
    """
    nothing_L = np.zeros(lengths.long_context_length, dtype=np.int64)
    shares = []
    for sequence in (own_context(nothing_L, lengths), *null_contexts(nothing_L, nothing_L, lengths)):
        costs_F = removal_costs(sequence, is_substituted)
        removals = costs_F[:max_k].sum() + costs_F[sequence.num_far_tokens_T[0] :].sum()
        needed = _cost_before_removals(Reruns(sequence, 0, is_substituted)) + removals
        shares.append(needed / exhaustive_cost(sequence, is_substituted))
    return max(shares)


def refuse_small_budget(
    budget: float, lengths: ContextLengths, max_k: int, is_substituted: bool = False
) -> None:
    """Do nothing where the budget pays for `max_k` influences of every target.

    Raises:
        InputError: it does not; says what would.
    """
    least = least_budget(lengths, max_k, is_substituted)
    if budget < least:
        raise InputError(
            f"--search-budget {budget:g} does not pay for rule leave_one_out_search: at these lengths its"
            f" estimates and {max_k} removals take up to {least:.2f} of what leave_one_out takes; choose a"
            " larger budget, a longer long context, fewer targets a chunk or a smaller k"
        )
