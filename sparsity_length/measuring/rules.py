"""Selection rules: which distant tokens are called influential.

A rule ranks the distant context of every target; S_k is its first k, so the S_k are nested. It is a search
and a criterion: the target's loss (the plain name, target-aware), or how far the whole prediction is from
that of the long context (the name with `_divergence`, target-agnostic). A choice of few tokens among hundreds
carries more information than the effect that it is to explain, so every search nearly reaches what it
optimizes; its null says how nearly, and only the excess is an effect. The paper selects by its Eq. 20, whose
text is not among our sources; `leave_one_out` is our reading of it, and results say which rule was used.

A rule is a function of one of two forms: `scores(far) -> [T, F]`, the largest first; or, if scores alone do
not tell the order, `rank(far, k) -> [T, k]`, the positions themselves. The decorator `rule` tells the two
apart by the second argument, registers the rule under its name and says what it looks at, from which follows
the null that it needs. A user's own stands in any file that is given as --rule-file
(analysis/examples/kv_cache_rules.py).

No torch here: a --help and a refusal are quick.

Shapes: T targets, F distant-context positions (of the last target), K the largest k.
"""

import argparse
import inspect
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import CodeType
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from sparsity_length.cli import InputError, unknown_name
from sparsity_length.results.schemas import MIMICRY, SELECTION

if TYPE_CHECKING:
    import torch

    from sparsity_length.measuring.far_context import FarContext
    from sparsity_length.models.interface import CausalLM, Predictions, ReadText

MASK = "mask"
SWAP = "swap"
ABLATIONS = (MASK, SWAP)
"""What becomes of a token that is left out: nothing is there; or another document's token is, in the place of
the whole distant context but for S_k."""
DEFAULT_ABLATION = SWAP
SEARCH_SWAPS = 0
TRIAL_SWAPS = 2
"""Defaults: other documents that stand there while tokens are chosen, and while the choice is tried. What
removal chooses carries over to other swapped contexts best (analysis/LOG.md, 2026-11-29)."""
CONTROLS = ("random", "recency")
DEFAULT_RULES = ("leave_one_out_divergence", "leave_one_out", *CONTROLS)
"""First the best one of the trial of the measures, within `DEFAULT_ABLATION` (analysis/LOG.md)."""
DEFAULT_KS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of influential tokens studied by default, as far as the distant context goes."""
NUM_SAMPLED_ANSWERS = 8
"""Answers that the rule gradient_divergence draws."""
LEAVE_ONE_OUT_RULES = ("leave_one_out", "leave_one_out_divergence")
"""Rules that leave each token out in turn."""

Sees = Literal["answer", "prediction", "attention", "nothing"]
Search = Literal["remove", "add", "greedy", "read"]
"""Leaves tokens out; adds each to the short context; adds the best one again and again, which has a meaning
only if nothing replaces the others; looks at the long context as it is."""
Function = TypeVar("Function", bound=Callable[..., np.ndarray])


@dataclass(frozen=True)
class Rule:
    """A search, its criterion, and what that means for the null."""

    name: str
    sees: Sees
    """What is known of the target: its loss; the whole prediction; where its query looks; nothing."""
    rank: Callable[["FarContext", int], np.ndarray]
    """Distant context and K -> the K tokens that come first, most influential first: int64 [T, K]."""
    search: Search = "read"

    @property
    def knows_ablations(self) -> bool:
        """Whether what it chooses depends on what stands in the place of other tokens."""
        return self.search in ("remove", "add")

    @property
    def null(self) -> str:
        """The kind of null that fits it: another document's tokens at the same positions, either way.

        MIMICRY if it fits the prediction: these tokens are chosen to reproduce *this* document's.
        Otherwise SELECTION: as in the own distant context, within the other document's.
        """
        builds_up = self.search in ("add", "greedy")
        return MIMICRY if builds_up and self.sees == "prediction" else SELECTION

    @property
    def needs_null(self) -> bool:
        """Whether what it recovers says nothing without its null: it fits the answer, or the prediction.

        If it does not, other documents' tokens are as likely to hurt, and the excess would flatter it.
        """
        return self.sees == "answer" or self.null == MIMICRY


RULES: dict[str, Rule] = {}
"""Name -> rule, in the order of --help and of tables."""


def rule(sees: Sees, search: Search = "read") -> Callable[[Function], Function]:
    """Register a function as a rule, under its name; arguments are fields of `Rule`.

    The function ranks, (far, k) -> positions [T, k]; or it scores, (far) -> [T, F], the largest first, the
    nearer of equals first, where scores of tokens that are not a target's distant ones are ignored.
    """

    def register(function: Function) -> Function:
        name = function.__name__
        # A file that is run again registers its rules anew; only two files can clash.
        earlier = RULES.get(name)
        if earlier is not None and _file_of(earlier.rank) != _file_of(function):
            raise InputError(f"there is a rule '{name}' already; rename yours")
        is_score = len(inspect.signature(function).parameters) == 1
        RULES[name] = Rule(name, sees, ranked_by(function) if is_score else function, search)
        return function

    return register


def _file_of(function: Callable[..., np.ndarray]) -> str:
    code: CodeType = inspect.unwrap(function).__code__
    return code.co_filename


def ranked_by(scores: Callable[["FarContext"], np.ndarray]) -> Callable[["FarContext", int], np.ndarray]:
    """The ranking by a score; InputError if the score is not one of each target and distant token."""

    @wraps(scores)
    def rank(far: "FarContext", k: int) -> np.ndarray:
        num_far_T = far.num_far_tokens_T
        scores_TF = np.asarray(scores(far))
        expected = len(num_far_T), int(num_far_T[-1])
        if scores_TF.shape != expected:
            raise InputError(
                f"rule '{scores.__name__}' returns scores of shape {scores_TF.shape}; {expected} is needed,"
                " targets by distant tokens"
            )
        # Whatever a rule says of positions beyond a target's distant context must not rank.
        is_far_TF = np.arange(expected[1]) < num_far_T[:, None]
        # A score that is no number is the least of a target's distant tokens, which still are candidates.
        scores_TF = np.where(np.isnan(scores_TF), -np.inf, scores_TF)
        return ranked(np.where(is_far_TF, scores_TF, np.nan), k)

    return rank


def load_rule_files(arguments: argparse.Namespace) -> None:
    """Run the Python files that register rules."""
    for path in arguments.rule_file or ():
        runpy.run_path(str(path))


def find_rule(name: str) -> Rule:
    """The rule called `name`; InputError if there is none."""
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    return RULES[name]


def ranked(scores_TF: np.ndarray, max_k: int) -> np.ndarray:
    """Positions of the `max_k` largest scores, largest first, the nearer of equals first: int64 [T, K].

    NaN is no candidate.
    """
    # A stable sort keeps the order of equals, so sorting from the nearest token on breaks ties rightly. NaN
    # comes last, behind -inf.
    order_TK = np.argsort(-scores_TF[:, ::-1], axis=1, kind="stable")[:, :max_k]
    return scores_TF.shape[1] - 1 - order_TK


# Necessity: what leaving a token out of the long context costs.


@rule("answer", "remove")
def leave_one_out(far: "FarContext") -> np.ndarray:
    """How much the loss of the target rises."""
    return far.necessity.losses


@rule("prediction", "remove")
def leave_one_out_divergence(far: "FarContext") -> np.ndarray:
    """How far the prediction moves."""
    return far.necessity.divergences


# Sufficiency: what a token gives beside the short context.


@rule("answer", "add")
def add_one_in(far: "FarContext") -> np.ndarray:
    """What the token alone gives, by the loss: takes every copy of one piece of evidence."""
    # The token that leaves the lowest loss is to score highest.
    return -far.first_additions.losses


@rule("prediction", "add")
def add_one_in_divergence(far: "FarContext") -> np.ndarray:
    """The same by the divergence."""
    return -far.first_additions.divergences


@rule("answer", "greedy")
def greedy(far: "FarContext", k: int) -> np.ndarray:
    """What a token gives beside those already chosen: of redundant evidence it takes one copy and goes on.

    It fits what it looks at best of all, with or without a dependency.
    """
    return _best_additions(far, k, "losses")


@rule("prediction", "greedy")
def greedy_divergence(far: "FarContext", k: int) -> np.ndarray:
    """The same by the divergence."""
    return _best_additions(far, k, "divergences")


def _best_additions(far: "FarContext", max_k: int, criterion: str) -> np.ndarray:
    """The best addition to those already chosen, again and again."""
    # A step measures every candidate of every target anew: about K times the passes of add_one_in.
    chosen_TK = ranked(-getattr(far.first_additions, criterion), 1)
    while chosen_TK.shape[1] < max_k:
        added_TF = getattr(far.measured_additions(chosen_TK), criterion)
        chosen_TK = np.concatenate([chosen_TK, ranked(-added_TF, 1)], axis=1)
    return chosen_TK


# First-order estimates of leaving out, by a gate on every attention edge into a token.


@rule("answer")
def gradient(far: "FarContext") -> np.ndarray:
    """The derivative of the loss by a gate that multiplies exp(score) of the edges into the token.

    It saturates: if a token has nearly all attention and the model is sure, the derivative vanishes though
    removal costs most.
    """
    # Removal takes the gate from 1 to 0, a step of -1: to first order the loss rises by minus this.
    return -far.look_inside(_gate_gradients)


@rule("prediction")
def gradient_divergence(far: "FarContext") -> np.ndarray:
    """The second-order term of the divergence by that gate, times two: its Fisher information.

    The divergence is least, 0, if nothing is left out, so its first derivative vanishes; half the mean
    square of the loss's derivative, over answers drawn from the prediction, is the second-order term.
    """
    # KL(p at gate 1 || p at gate g) = F (1 - g)² / 2 + …; the factor does not change the ranking. The exact
    # mean over answers would take V backward passes per target.
    squares = [
        far.look_inside(_gate_gradients, answers_T) ** 2
        # The 2 keeps this stream apart from that of rules, which draw from the seed itself.
        for answers_T in sampled_answers(far.predictions, NUM_SAMPLED_ANSWERS, far.generator(2))
    ]
    return np.asarray(np.mean(squares, axis=0, dtype=np.float32))


def _gate_gradients(model: "CausalLM", read: "ReadText") -> "torch.Tensor":
    return model.gate_gradients(*read)


def sampled_answers(
    predictions: "Predictions", num_answers: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Tokens drawn from each of T predictions, spread over it evenly: `num_answers` arrays int64 [T]."""
    # In float32 a running sum near 1 swallows rare tokens.
    cumulated_TV = predictions.probs_TV.double().cumsum(-1).cpu().numpy()
    answers = np.empty((num_answers, len(cumulated_TV)), dtype=np.int64)
    for target, place in enumerate(generator.random(len(cumulated_TV))):
        row_V = cumulated_TV[target]
        # Systematic sampling: one draw, then equal steps through the distribution, which has less variance
        # than independent draws. Rounded probabilities sum to row_V[-1], not quite to 1.
        places = (place + np.arange(num_answers)) / num_answers * row_V[-1]
        answers[:, target] = np.searchsorted(row_V, places, side="right")
    return [*answers.clip(max=cumulated_TV.shape[1] - 1)]


# Where the row that predicts a target looks; none of these sees the target.


@rule("attention")
def attention(far: "FarContext") -> np.ndarray:
    """Attention to the token, mean over layers and heads."""

    def mean_attention(model: "CausalLM", read: "ReadText") -> "torch.Tensor":
        layers = model.watch_heads(*read[:3], lambda weights_HSS: weights_HSS[:, read.query_rows_T].mean(0))
        return sum(layers[1:], layers[0]) / len(layers)

    return far.look_inside(mean_attention)


@rule("attention")
def attention_no_sink(far: "FarContext") -> np.ndarray:
    """The same, but the first token of the chunk comes last.

    Heads with nothing to look for look at the first token that they see ("attention sink"; Xiao et al. 2023,
    arXiv 2309.17453). A beginning-of-text token is a sink, too, and never a distant token.
    """
    scores_TF = attention(far)
    # Below all attention, yet not NaN: it stays a candidate if k takes in every token.
    scores_TF[:, 0] = -1
    return scores_TF


@rule("attention")
def attention_rollout(far: "FarContext") -> np.ndarray:
    """What the row that predicts each target holds of each distant token, through all layers.

    Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", arXiv 2005.00928. Of a layer, A
    is the mean attention of its heads; half of what a row holds comes from itself, by the residual stream:

        rollout = Ā_n ··· Ā_2 Ā_1,   Ā = (A + 1) / 2

    A row of it sums to 1. In memory: the mean attention of all rows in every layer.
    """

    def rollout(model: "CausalLM", read: "ReadText") -> "torch.Tensor":
        layers = model.watch_heads(*read[:3], lambda weights_HSS: weights_HSS.mean(0))
        held_TS = layers[0].new_zeros(len(read.query_rows_T), len(layers[0]))
        held_TS.scatter_(1, read.query_rows_T[:, None], 1)
        for mean_SS in reversed(layers):  # from the last layer down: T rows, not S
            # Behind a BOS rows sum to less than 1: what goes to it is cut off, and could not come back,
            # since a BOS sees no row of the text.
            held_TS = (held_TS @ mean_SS + held_TS) / 2
        return held_TS

    return far.look_inside(rollout)


# Controls: chance and distance. Every rule stands beside them.


@rule("nothing")
def random(far: "FarContext", k: int) -> np.ndarray:
    """Any tokens; the same in the own distant context and in its null."""
    num_far_T = far.num_far_tokens_T
    # The shape follows from lengths alone, so every model, and the null, gets the same positions.
    draws_TF = far.generator().random((len(num_far_T), num_far_T[-1]))
    return ranked(np.where(np.arange(num_far_T[-1]) < num_far_T[:, None], draws_TF, np.nan), k)


@rule("nothing")
def recency(far: "FarContext") -> np.ndarray:
    """The tokens right before the short context."""
    num_far_T = far.num_far_tokens_T
    return np.tile(np.arange(num_far_T[-1]), (len(num_far_T), 1))
