"""Selection rules: which distant tokens are called influential.

A rule ranks the distant context of every target; S_k is its first k, so the S_k are nested. It is a search
and a criterion: the target's loss (the plain name, target-aware), or how far the whole prediction is from
that of the long context (the name with `_divergence`, target-agnostic). A choice of few tokens among hundreds
carries more information than the effect that it is to explain, so every search nearly reaches what it
optimizes; its null says how nearly, and only the excess is an effect. The paper selects by its Eq. 20, whose
text is not among our sources; `leave_one_out` is our reading of it, and results say which rule was used.

A rule is a function, `scores(far) -> [T, F]`, the largest first. The decorator `rule` registers it under its
name and says what it looks at, from which follows the null that it needs. A user's own stands in any file
that is given as --rule-file (analysis/examples/kv_cache_rules.py).

No torch here: a --help and a refusal are quick.

Shapes: T targets, F distant-context positions (of the last target), K the largest k.
"""

import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from pipeline.cli import InputError, unknown_name
from pipeline.measuring.flags import BLOCKS, LONGEST_EXACT, MINIMUM_GAIN, ContextLengths
from pipeline.results.schemas import MIMICRY, OWN, SELECTION

if TYPE_CHECKING:
    import torch

    from pipeline.measuring.far_context import FarContext
    from pipeline.models.interface import CausalLM, Predictions, ReadText

MASK = "mask"
SWAP = "swap"
ABLATIONS = (MASK, SWAP)
"""What becomes of a token that is left out: nothing is there; or another document's token is, in the place of
the whole distant context but for S_k."""
DEFAULT_ABLATION = SWAP
SEARCH_SWAPS = 1
TRIAL_SWAPS = 2
"""Defaults: other documents that stand there while tokens are chosen, and while the choice is tried."""
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
where nothing stands in the place of the others; looks at the long context as it is."""
Function = TypeVar("Function", bound=Callable[..., np.ndarray])


@dataclass(frozen=True)
class Rule:
    """A search, its criterion, and what that means for the null."""

    name: str
    sees: Sees
    """What is known of the target: its loss; the whole prediction; where its query looks; nothing."""
    function: Callable[..., np.ndarray]
    """Distant context -> a score for each target and token: [T, F]; those of other tokens are ignored."""
    search: Search = "read"
    ranks: bool = False
    """Whether the function ranks by itself: (distant context, K, generator) -> positions, int64 [T, K]."""

    @property
    def knows_ablations(self) -> bool:
        """Whether what it chooses depends on what stands in the place of other tokens."""
        return self.search in ("remove", "add")

    @property
    def null(self) -> str:
        """The kind of null that fits it: another document's tokens at the same positions, either way.

        MIMICRY where it fits the prediction: these tokens are chosen to reproduce *this* document's.
        Otherwise SELECTION: as in the own distant context, within the other document's.
        """
        builds_up = self.search in ("add", "greedy")
        return MIMICRY if builds_up and self.sees == "prediction" else SELECTION

    @property
    def needs_null(self) -> bool:
        """Whether what it recovers says nothing without its null: it fits the answer, or the prediction.

        Where it does not, other documents' tokens are as likely to hurt, and the excess would flatter it.
        """
        return self.sees == "answer" or self.null == MIMICRY


RULES: dict[str, Rule] = {}
"""Name -> rule, in the order of --help and of tables."""


def rule(sees: Sees, search: Search = "read", *, ranks: bool = False) -> Callable[[Function], Function]:
    """Register a function of a distant context as a rule; arguments are fields of `Rule`."""

    def register(function: Function) -> Function:
        name = function.__name__
        file = function.__code__.co_filename
        # A file that is run again registers its rules anew; only two files can clash.
        if name in RULES and RULES[name].function.__code__.co_filename != file:
            raise InputError(f"there is a rule '{name}' already; rename yours")
        RULES[name] = Rule(name, sees, function, search, ranks)
        return function

    return register


def load_rule_file(path: Path) -> None:
    """Run a Python file that registers rules."""
    runpy.run_path(str(path))


def find_rule(name: str) -> Rule:
    """The rule called `name`; InputError where there is none."""
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    return RULES[name]


def ranked(scores_TF: np.ndarray, max_k: int) -> np.ndarray:
    """Positions of the `max_k` largest scores, largest first, the nearer of equals first: int64 [T, K].

    NaN is no candidate.
    """
    # A stable sort keeps the order of equals, so sorting from the nearest token on breaks ties rightly.
    nearest_first_TF = np.where(np.isnan(scores_TF), -np.inf, scores_TF)[:, ::-1]
    order_TK = np.argsort(-nearest_first_TF, axis=1, kind="stable")[:, :max_k]
    return scores_TF.shape[1] - 1 - order_TK


def selected_positions(
    far: "FarContext", name: str, max_k: int, seed: Sequence[int] | np.random.Generator
) -> np.ndarray:
    """The `max_k` tokens that a rule ranks first, most influential first: int64 [T, K]."""
    chosen = find_rule(name)
    if chosen.ranks:
        return chosen.function(far, max_k, np.random.default_rng(seed))
    num_far_T = far.num_far_tokens_T
    scores_TF = np.asarray(chosen.function(far))
    expected = len(num_far_T), int(num_far_T[-1])
    if scores_TF.shape != expected:
        raise InputError(
            f"rule '{name}' returns scores of shape {scores_TF.shape}; {expected} is needed, targets by"
            " distant tokens"
        )
    # Whatever a rule says of positions beyond a target's distant context must not rank.
    return ranked(np.where(np.arange(expected[1]) < num_far_T[:, None], scores_TF, np.nan), max_k)


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """What is measured of every chunk; InputError, in the words of the flags, where it does not fit together.

    Built once, from a command line, from the settings of results, or from the library's arguments.
    """

    lengths: ContextLengths
    rules: Sequence[str] = ()
    ks: Sequence[int] = ()
    """The numbers of influential tokens asked for, ascending."""
    ablation: str = MASK
    search_swaps: int = SEARCH_SWAPS
    trial_swaps: int = TRIAL_SWAPS
    """Other documents to average over, under the ablation `swap`, while tokens are chosen, and while a choice
    is tried; where none serves the search, it removes tokens."""
    null_fraction: float = 1.0
    """Fraction of the documents that have a null; which ones, a hash of the text decides."""
    every_null: bool = True
    """Whether every rule is measured in the null; else those only that say nothing without theirs."""
    minimum_gain: float = MINIMUM_GAIN
    """Nats; where the gain is below it there is nothing to recover, and no sparsity."""
    screen: int | None = None
    """Blocks that a round of leave_one_out leaves out, as asked for; None: the default."""
    seed: int = 0

    def __post_init__(self) -> None:
        for rule in map(find_rule, self.rules):
            if self.ablation == SWAP and self.search_swaps and rule.search == "greedy":
                raise InputError(
                    f"{rule.name} builds up a context in which nothing else stands; say --search-swaps 0 or"
                    " --ablation mask"
                )
        # Every target must fill every rank, so the first one, with the fewest distant tokens, decides.
        if self.ks and self.ks[-1] > self.smallest_far_context:
            raise InputError(
                f"--k {self.ks[-1]} is more than the {self.smallest_far_context} distant tokens of the"
                " first target: choose a smaller k, a longer long context or fewer targets a chunk"
            )
        if self.null_fraction < 1 and all(find_rule(rule).needs_null for rule in self.rules):
            raise InputError(
                "--null-fraction leaves most documents without any rule; name one that needs no null, such as"
                f" {DEFAULT_RULES[0]}"
            )

    @property
    def num_others(self) -> int:
        """Documents that a chunk is measured with: one for the null, then the trial's swaps, the search's."""
        return 1 + (self.trial_swaps + self.search_swaps if self.ablation == SWAP else 0)

    @property
    def smallest_far_context(self) -> int:
        """Distant tokens of the first target."""
        return int(self.lengths.num_far_tokens_T[0])

    @property
    def num_blocks(self) -> int | None:
        """How many blocks a round really leaves out; None: every token, or nothing."""
        num_blocks = self.screen
        if num_blocks is None and self.lengths.long_context_length > LONGEST_EXACT:
            num_blocks = BLOCKS + self.lengths.num_targets
        # With a block for every token there is nothing to screen.
        is_whole = num_blocks is None or num_blocks >= self.smallest_far_context
        return num_blocks if not is_whole and set(LEAVE_ONE_OUT_RULES) & set(self.rules) else None

    def numbers_of(self, rule: str) -> list[int]:
        """The numbers of tokens that a rule is studied at: those asked for, ascending.

        Of the controls, whose order costs nothing, also every power of two up to the whole distant context,
        to tell how many of the nearest tokens do what a few chosen ones do. Of screened rules too: their far
        context is long, and what lies between the largest number asked for and all of it would not be known.
        """
        if rule not in CONTROLS and (self.num_blocks is None or rule not in LEAVE_ONE_OUT_RULES):
            return sorted(set(self.ks))
        # Of 959 distant tokens: 1, 2, 4, … 512.
        powers = {1 << exponent for exponent in range(self.smallest_far_context.bit_length())}
        return sorted({*self.ks, *powers, self.smallest_far_context})

    def rules_in(self, distant_context: str, document_id: str) -> list[str]:
        """The rules that choose in this distant context of a document."""
        # The end of a hash is anywhere in [0, 1); its beginning is what documents are ordered by.
        has_null = int(document_id[-8:], 16) / 16**8 < self.null_fraction
        is_own = distant_context == OWN
        return [
            rule.name
            for rule in map(find_rule, self.rules)
            if (is_own and not rule.needs_null)
            or (has_null and (is_own or self.every_null or rule.needs_null))
        ]

    def seed_of(self, document_id: str, chunk_index: int) -> tuple[int, ...]:
        """The seed of all that is drawn for a chunk, whichever model measures it."""
        # An ID is a hash of the text, so draws do not depend on which other documents are measured.
        return (self.seed, int(document_id, 16), chunk_index)


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


@rule("answer", "greedy", ranks=True)
def greedy(far: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """What a token gives beside those already chosen: of redundant evidence it takes one copy and goes on.

    It fits what it looks at best of all, with or without a dependency.
    """
    return _best_additions(far, max_k, "losses")


@rule("prediction", "greedy", ranks=True)
def greedy_divergence(far: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The same by the divergence."""
    return _best_additions(far, max_k, "divergences")


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

    It saturates: where a token has nearly all attention and the model is sure, the derivative vanishes though
    removal costs most.
    """
    # Removal takes the gate from 1 to 0, a step of -1: to first order the loss rises by minus this.
    return -far.look_inside(_gate_gradients)


@rule("prediction")
def gradient_divergence(far: "FarContext") -> np.ndarray:
    """The second-order term of the divergence by that gate, times two: its Fisher information.

    The divergence is least, 0, where nothing is left out, so its first derivative vanishes; half the mean
    square of the loss's derivative, over answers drawn from the prediction, is the second-order term.
    """
    # KL(p at gate 1 || p at gate g) = F (1 - g)² / 2 + …; the factor does not change the ranking. The exact
    # mean over answers would take V backward passes a target.
    squares = [
        far.look_inside(_gate_gradients, answers_T) ** 2
        for answers_T in sampled_answers(far.predictions, NUM_SAMPLED_ANSWERS, far.seed)
    ]
    return np.asarray(np.mean(squares, axis=0, dtype=np.float32))


def _gate_gradients(model: "CausalLM", read: "ReadText") -> "torch.Tensor":
    return model.gate_gradients(*read)


def sampled_answers(predictions: "Predictions", num_answers: int, seed: Sequence[int]) -> list[np.ndarray]:
    """Tokens drawn from each of T predictions, spread over it evenly: `num_answers` arrays int64 [T]."""
    # In float32 a running sum near 1 swallows rare tokens.
    cumulated_TV = predictions.probs_TV.double().cumsum(-1).cpu().numpy()
    # The 2 keeps this stream apart from that of rules, which draw from `seed` itself.
    places_T = np.random.default_rng([*seed, 2]).random(len(cumulated_TV))
    return [
        np.array(
            [
                # Systematic sampling: one draw, then equal steps through the distribution, which has less
                # variance than independent draws. Rounded probabilities sum to row_V[-1], not quite to 1.
                np.searchsorted(row_V, (place + answer) / num_answers * row_V[-1], side="right")
                for row_V, place in zip(cumulated_TV, places_T, strict=True)
            ]
        ).clip(max=cumulated_TV.shape[1] - 1)
        for answer in range(num_answers)
    ]


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


@rule("nothing", ranks=True)
def random(far: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """Any tokens; the same in the own distant context and in its null."""
    num_far_T = far.num_far_tokens_T
    # The shape follows from lengths alone, so every model, and the null, gets the same positions.
    draws_TF = generator.random((len(num_far_T), num_far_T[-1]))
    return ranked(np.where(np.arange(num_far_T[-1]) < num_far_T[:, None], draws_TF, np.nan), max_k)


@rule("nothing")
def recency(far: "FarContext") -> np.ndarray:
    """The tokens right before the short context."""
    num_far_T = far.num_far_tokens_T
    return np.tile(np.arange(num_far_T[-1]), (len(num_far_T), 1))
