"""Selection rules that other people proposed: a function each, which scores the far tokens of a `FarContext`.

What a function returns is [T, F], NaN where a token is not far context of a target, or two such, by the loss
and by the divergence; the k largest are its choice. Its row in `rules.RULES` says what it sees and what it
costs, its docstring what differs from the paper. analysis/METHODS.md shows how to add one. Libraries that
only some need are imported where they are used.

Shapes: S rows of a sequence, T targets (query rows), F far-context positions (of the last target), H heads, D
width, N subsets, E = F + 1 starts, B starts of a pass.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import wraps

import numpy as np
import torch

from pipeline.cli import InputError
from pipeline.measuring.contexts import Measured, PackedSequence, PassQueue, Rows, read_prefix
from pipeline.measuring.far_context import FarContext, rows_with_substitutes
from pipeline.measuring.flags import NUM_INTEGRATION_STEPS
from pipeline.models.interface import CausalLM, ReadText, to_device

PENALTY = 0.01
"""Of the sum of the surrogate's weights' sizes, features being standardized."""
MOST_ROUNDS = 1000
"""Of its coordinate descent."""
_SUREST = 2.0**-24
"""Nats: a loss below float32's last bit is taken for this, as its logit would be infinite."""
RIDGE = 1e-3
"""What is added to the variances of heads' attention, as a share of their mean."""
LEARNED = "learned_attention"
POOLED, PAGE = 5, 16
"""Neighbours that `snapkv` averages over; tokens of a page of `quest`."""
Policy = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(keys of the far tokens [A, F, E]; queries of the rows that always stay [A, W, E], of which the last
predicts the target; attention of all rows to the far tokens [A, F + W, F]) -> how much each far token is
worth keeping [F]. A: heads of all layers; float32."""
BudgetPolicy = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], Sequence[int] | torch.Tensor]
"""The same, and a budget k -> the k far tokens kept, by their places from 0 to F - 1."""
LogProbs = Callable[[torch.Tensor], torch.Tensor]
"""Embeddings [B, S, D] -> ln p of every target [B, T]."""


def attention_rollout(context: FarContext) -> np.ndarray:
    """What the row that predicts each target holds of each far token, through all layers.

    Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", arXiv 2005.00928. Of a layer, A is
    the mean attention of its heads; half of what a row holds comes from itself, by the residual stream:

        rollout = Ā_n ··· Ā_2 Ā_1,   Ā = (A + 1) / 2

    A row of it sums to 1. Blind to the target. In memory: the mean attention of all rows in every layer.
    """

    def rollout(model: CausalLM, read: ReadText) -> torch.Tensor:
        of_layers = model.watch_heads(*read[:3], None, lambda queries, keys, all_HSS: all_HSS.mean(0))
        held_TS = torch.nn.functional.one_hot(read.query_rows_T, read.token_ids_1S.shape[1]).float()
        for mean_SS in reversed(of_layers):  # from the last layer down: T rows, not S
            held_TS = (held_TS @ mean_SS + held_TS) / 2
        return held_TS

    return context.look_inside("attention_rollout", rollout)


def context_length_probing(context: FarContext) -> Measured:
    """What reaching back to each far token lowers loss and divergence by: float64 [T, F] each, nats.

    Cífka and Liutkus 2023, "Black-box language model explanation by context length probing", arXiv
    2212.14815: the difference that the two contexts make that begin at i and right behind it,

        score(i) = loss(t | from i + 1 on) - loss(t | from i on)

    so that the scores of all far tokens add up to L_short - L_long (a test). One pass over the tokens from a
    start on serves all targets. Theirs restarts the position IDs at every start, as a text cut off has it;
    here tokens keep theirs. In a background what stands before the start is another document's.
    """
    return Measured(*map(np.diff, measured_from_each_start(context)))


def measured_from_each_start(context: FarContext) -> Measured:
    """loss(t | the tokens from each start on), and its divergence: float64 [T, E] each.

    Start 0 is the long context; the start of t's short context is that or, in a background, the baseline.
    NaN behind it.
    """
    num_far_T, num_targets = context.num_far_tokens_T, context.lengths.num_targets
    between = Measured.mean(
        [
            Measured.joined([_from_starts(context, sequence, fill_L) for sequence in context.sequences])
            for fill_L in context.replacements
        ]
    )
    long_divergences_T = context.reference.divergences(
        context.predictions.log_probs_TV, torch.arange(num_targets)
    )
    long = context.long_losses_T, long_divergences_T.cpu().numpy()
    baseline = context.background or context.short
    of_criteria = []
    for values_TE, long_T, baseline_T in zip(between, long, baseline, strict=True):
        values_TE[:, 0] = long_T
        values_TE[np.arange(num_targets), num_far_T] = baseline_T
        values_TE[np.arange(values_TE.shape[1]) > num_far_T[:, None]] = np.nan
        of_criteria.append(values_TE.astype(np.float64))  # in which float32 differences are exact
    return Measured(*of_criteria)


def _from_starts(context: FarContext, sequence: PackedSequence, fill_L: np.ndarray | None) -> Measured:
    """Of a sequence's targets, from the starts 1 ... F - 1 on: [T, E] each, NaN elsewhere."""
    model, batching = context.model, context.measurement.batching
    num_targets, num_far = len(sequence.target_ids_T), int(sequence.num_far_tokens_T[-1])
    shape = num_targets, int(context.num_far_tokens_T[-1]) + 1
    measured = Measured(*(np.full(shape, np.nan, dtype=np.float32) for _ in range(2)))
    if num_far < 2:
        return measured
    before = None if fill_L is None else read_prefix(model, fill_L[: num_far - 1])
    target_ids_T = to_device(sequence.target_ids_T, model.device)
    queue = PassQueue(model, batching, context.reference.at(sequence.targets))
    starts_E = np.arange(1, num_far)
    while len(starts_E):
        first = int(starts_E[0])
        num_rows = len(sequence.token_ids_S) - first
        # Starts within a quarter of the rows keep the rows run in vain to an eighth.
        starts_B = starts_E[: max(1, min(batching.num_sequences(num_rows), num_rows // 4))]
        if fill_L is None:
            rows = _rows_cut_off(sequence, starts_B)
        else:
            is_before_BS = np.arange(first, len(sequence.token_ids_S)) < starts_B[:, None]
            rows = rows_with_substitutes(sequence, first, is_before_BS, fill_L)
        prefix = None if before is None else before.first(first)
        queue.run(rows, target_ids_T, prefix=prefix)
        starts_E = starts_E[len(starts_B) :]
    for values_TE, parts in zip(measured, queue.read(), strict=True):
        values_TE[:, 1:num_far] = np.concatenate(parts).T
    return measured


def _rows_cut_off(sequence: PackedSequence, starts_B: np.ndarray) -> Rows:
    """Nothing before each start. Copies of the last row, which no other sees, fill up the shorter ones."""
    last = len(sequence.token_ids_S) - 1
    rows_BR = starts_B[:, None] + np.arange(last + 1 - starts_B[0])
    is_there_BR = rows_BR <= last
    rows_BR = rows_BR.clip(max=last)
    visible_SS, visible_BRR = sequence.visible_SS, None
    if visible_SS is not None:
        visible_BRR = visible_SS[rows_BR[:, :, None], rows_BR[:, None, :]] & is_there_BR[:, None]
    # A query row before the start is that of a target whose short context it is; its entry is blanked.
    queries_BT = (sequence.query_rows_T - starts_B[:, None]).clip(min=0)
    return Rows(sequence.token_ids_S[rows_BR], sequence.position_ids_S[rows_BR], visible_BRR, queries_BT)


def surrogate(context: FarContext) -> Measured:
    """How much each far token raises the logit of the target's probability, by ContextCite: float64 [T, F].

    And how much nearer it brings the prediction to that of the long context, nats.

    Cohen-Wang, Shah, Georgiev and Madry 2024, "ContextCite: Attributing Model Generation to Context", arXiv
    2409.00729: a sparse linear model stands in for the language model on subsets of the far context. Of N
    random subsets, each token in with the same probability, all targets of a chunk are measured in the same
    passes. For each target a Lasso is fitted, with the package's penalty and its standardized features:
    whether each far token is in the subset -> the logit of the target's probability, or minus the divergence.
    The score of a token is its weight. Theirs has sentences as sources, ours tokens; with fewer subsets than
    tokens the penalty picks the few. It looks at the target, though no single context can be fitted.
    """
    kept_NF, num_far_T = subsets_of(context), context.num_far_tokens_T
    measured = context.in_subsets(kept_NF)
    outputs = logits_of_losses(measured.losses), -measured.divergences.astype(np.float64)
    weights_2TF = np.full((2, len(num_far_T), kept_NF.shape[1]), np.nan)
    for weights_TF, outputs_NT in zip(weights_2TF, outputs, strict=True):
        for target, num_far in enumerate(num_far_T):
            weights_TF[target, :num_far] = sparse_weights(kept_NF[:, :num_far], outputs_NT[:, target])
    return Measured(*weights_2TF)


def subsets_of(context: FarContext) -> np.ndarray:
    """The random subsets, whether each far position is in: bool [N, F]."""
    measurement, num_far = context.measurement, int(context.num_far_tokens_T[-1])
    draws_NF = np.random.default_rng([*measurement.seed, 4]).random((measurement.num_subsets, num_far))
    return draws_NF < measurement.kept_fraction


def logits_of_losses(losses: np.ndarray) -> np.ndarray:
    """Ln p - ln (1 - p) of probabilities that are given as losses, -ln p in nats."""
    losses = np.maximum(losses.astype(np.float64), _SUREST)
    return -losses - np.log(-np.expm1(-losses))


def sparse_weights(kept_NF: np.ndarray, outputs_N: np.ndarray) -> np.ndarray:
    """The weight of each token, in units of the output: float64 [F]; sklearn warns of no convergence."""
    from sklearn.linear_model import Lasso

    spread_F = kept_NF.std(0)
    spread_F[spread_F == 0] = 1  # always in, or never: nothing is to be said of it
    lasso = Lasso(alpha=PENALTY, max_iter=MOST_ROUNDS).fit((kept_NF - kept_NF.mean(0)) / spread_F, outputs_N)
    return lasso.coef_ / spread_F


def input_x_gradient(context: FarContext) -> np.ndarray:
    """What the embedding of each far token does to ln p of the target, to first order, nats.

    Shrikumar, Greenside, Shcherbina and Kundaje 2016, "Not Just a Black Box", arXiv 1605.01713; by captum
    (Kokhlikyan et al. 2020, arXiv 2009.07896), the extra `attribution`. The score of token i is

        sum over d of e_i[d] · ∂ ln p(x_t | long) / ∂ e_i[d]

    with e_i its embedding: what ln p loses where the embedding is shrunk to 0. It looks at the target.
    """
    from captum.attr import InputXGradient

    return _attributed_to_embeddings(
        context,
        "input_x_gradient",
        lambda log_probs, embedded_1SD, index: InputXGradient(log_probs).attribute(
            embedded_1SD, target=index
        ),
    )


def integrated_gradients(context: FarContext) -> np.ndarray:
    """What the embedding of each far token does to ln p of the target, on the way from 0, nats.

    Sundararajan, Taly and Yan 2017, "Axiomatic Attribution for Deep Networks", arXiv 1703.01365; by captum.
    All embeddings of the long context grow from 0, along a straight line, at the places of a Gauss-Legendre
    quadrature, captum's own choice. So the scores of all tokens, those of the short context included, add up
    to ln p(x_t | long) less what ln p is where every embedding is 0. It looks at the target.
    """
    from captum.attr import IntegratedGradients

    def attribute(log_probs: LogProbs, embedded_1SD: torch.Tensor, index: int) -> torch.Tensor:
        # A pass that is kept for its derivative takes several times the memory of one that is not.
        num_sequences = context.measurement.batching.num_sequences(embedded_1SD.shape[1])
        return IntegratedGradients(log_probs).attribute(
            embedded_1SD,
            target=index,
            n_steps=NUM_INTEGRATION_STEPS,
            internal_batch_size=max(1, num_sequences // 4),
        )

    return _attributed_to_embeddings(context, "integrated_gradients", attribute)


def _attributed_to_embeddings(
    context: FarContext, rule: str, attribute: Callable[[LogProbs, torch.Tensor, int], torch.Tensor]
) -> np.ndarray:
    """The sum over each far token's embedding of what `attribute` says of its numbers, for each target."""

    def of_sequence(model: CausalLM, read: ReadText) -> torch.Tensor:
        embedded_1SD = model.embed(read.token_ids_1S).detach().requires_grad_()
        of_targets = [
            attribute(lambda embedded_BSD: -model.losses_of_embeddings(embedded_BSD, *read[1:]),
                      embedded_1SD, index)
            for index in range(len(read.target_ids_T))
        ]  # fmt: skip
        return torch.cat(of_targets).detach().float().sum(-1)

    return context.look_inside(rule, of_sequence)


def learned_attention(context: FarContext) -> Measured:
    """Attention weighted by heads, as AT2 learns it (`fitted_head_weights`): [T, F] each.

    The sum over heads of the head's weight times its attention from the row that predicts the target. The
    weights are fitted to influences, or to how far leaving one out moves the prediction, of other targets:
    this one's token is not seen.
    """
    if (weights_2H := context.measurement.head_weights_2H) is None:
        raise InputError(
            f"rule '{LEARNED}' has no weights of heads for this model; influential_tokens fits them"
            " to training tokens before it measures"
        )
    weights_2H11 = torch.tensor(weights_2H, device=context.model.device).float()[..., None, None]

    def weighted(layers: list[torch.Tensor]) -> torch.Tensor:
        heads_HTS = torch.cat(layers)
        return torch.stack([(weights_H11 * heads_HTS).sum(0) for weights_H11 in weights_2H11])

    return Measured(*context.watched_attention(LEARNED, lambda layer_HTS: layer_HTS, weighted))


def attention_of_heads(context: FarContext) -> np.ndarray:
    """Attention of each target's row to each far token, by head, layer after layer: float32 [H, T, F]."""
    return context.watched_attention(LEARNED, lambda layer_HTS: layer_HTS, torch.cat)


def fitted_head_weights(contexts: Iterable[FarContext]) -> np.ndarray:
    """Weights of heads, so that weighted attention tells what leaving tokens out does: float64 [2, H].

    First by the influences, then by the divergences; layer after layer, and only proportions matter.

    As AT2 does (Cohen-Wang, Chuang and Madry 2025, "Learning to Attribute with Attention", arXiv 2504.13752).
    Theirs is fitted to the effects of random subsets, ours to those of single tokens, which the engine tells
    exactly. Features and outcomes are centred within a target, as what counts is the order of a target's
    tokens. Their loss, a correlation, gives every example one weight; here a target counts as much as its
    effects are large: of one token most effects are noise, and equal weights fitted that. Ridge regression,
    by sums over targets: no example is kept.

    Args:
        contexts: own far contexts of several chunks; each is read, every far token left out in turn, and
            forgotten.
    """
    products_HH: np.ndarray | float = 0.0
    outcomes_H2: np.ndarray | float = 0.0
    for context in contexts:
        heads_HTF = attention_of_heads(context).astype(np.float64)
        effects = context.influence_TF, context.divergence_TF
        for target, num_far in enumerate(context.num_far_tokens_T):
            features_HF = heads_HTF[:, target, :num_far]
            features_HF = features_HF - features_HF.mean(1, keepdims=True)
            of_target = [effect_TF[target, :num_far].astype(np.float64) for effect_TF in effects]
            outcomes_F2 = np.stack([effect_F - effect_F.mean() for effect_F in of_target], axis=1)
            products_HH = products_HH + features_HF @ features_HF.T / num_far
            outcomes_H2 = outcomes_H2 + features_HF @ outcomes_F2 / num_far
    assert isinstance(products_HH, np.ndarray), "no chunk to learn from"
    ridge = RIDGE * np.trace(products_HH) / len(products_HH)
    weights_2H: np.ndarray = np.linalg.solve(products_HH + ridge * np.eye(len(products_HH)), outcomes_H2).T
    return weights_2H


def cache_policy(policy: Policy) -> Callable[[FarContext], np.ndarray]:
    """Make a method of a policy that keeps some far tokens of a cache, such as those below.

    One set of tokens for all layers and heads, where a cache may keep others in each: what is evicted here is
    gone from the network. The rows that always stay are the short context. In memory: the attention of all
    rows in every head.
    """

    @wraps(policy)
    def method(context: FarContext) -> np.ndarray:
        def worth(model: CausalLM, read: ReadText) -> torch.Tensor:
            layers = model.watch_heads(*read[:3], None, lambda *of_layer: of_layer)
            queries_ASE, keys_ASE, attention_ASS = (torch.cat(parts) for parts in zip(*layers, strict=True))
            worth_TS = torch.full((len(read.query_rows_T), keys_ASE.shape[1]), torch.nan)
            for target, row in enumerate(read.query_rows_T.tolist()):
                seen = torch.arange(row + 1, device=keys_ASE.device)
                if read.visible_1SS is not None:
                    seen = read.visible_1SS[0, row].nonzero()[:, 0]
                far, short = seen.tensor_split([len(seen) - context.lengths.short_context_length])
                given = keys_ASE[:, far], queries_ASE[:, short], attention_ASS[:, seen][:, :, far]
                worth_TS[target, far.cpu()] = policy(*given).cpu()
            return worth_TS

        return context.look_inside(policy.__name__, worth)

    return method


def kept_by(policy: BudgetPolicy) -> Policy:
    """Turn a policy that says which k tokens it keeps into one that says how much each is worth.

    It is asked for budgets of 1, 2, 4, … and all far tokens. Budgets between two of these take the places of
    the larger one in the order that the policy gives them in.

    The result raises InputError where as many different places as the budget do not come back, or where a
    place is dropped at a larger budget: k are the first k of one ranking.
    """

    @wraps(policy)
    def worth(keys_AFE: torch.Tensor, queries_AWE: torch.Tensor, attention_ANF: torch.Tensor) -> torch.Tensor:
        num_far, ranking = keys_AFE.shape[1], list[int]()
        for budget in [*(2**power for power in range(num_far.bit_length()) if 2**power < num_far), num_far]:
            kept = [int(place) for place in policy(keys_AFE, queries_AWE, attention_ANF, budget)]
            if len(kept) != budget or not set(kept) <= set(range(num_far)) or len(set(kept)) != budget:
                raise InputError(
                    f"the policy {policy.__name__} keeps {len(kept)} places, {len(set(kept))} of them"
                    f" different, at a budget of {budget} of {num_far} far tokens; it must keep as many"
                    f" different places as the budget, from 0 to {num_far - 1}"
                )
            if dropped := set(ranking) - set(kept):
                raise InputError(
                    f"the policy {policy.__name__} drops place {min(dropped)} at a budget of {budget}, which"
                    " it keeps at a smaller one; what it keeps must grow with the budget"
                )
            ranking = list(dict.fromkeys([*ranking, *kept]))
        worth_F = torch.empty(num_far)
        worth_F[ranking] = -torch.arange(num_far, dtype=torch.float32)
        return worth_F

    return worth


@cache_policy
def h2o(keys_AFE: torch.Tensor, queries_AWE: torch.Tensor, attention_ANF: torch.Tensor) -> torch.Tensor:
    """Tokens that all rows so far have attended to most, in sum: "heavy hitters".

    Zhang et al. 2023, arXiv 2306.14048. Theirs chooses in each head, and anew at every token, when what was
    evicted gets no more attention; here every row sees all before it.
    """
    return attention_ANF.sum(1).mean(0)


@cache_policy
def snapkv(keys_AFE: torch.Tensor, queries_AWE: torch.Tensor, attention_ANF: torch.Tensor) -> torch.Tensor:
    """Tokens that the last rows attend to most, in sum, each with its neighbours' mean.

    Li et al. 2024, arXiv 2404.14469. The last rows, theirs an "observation window", are the short context.
    Theirs chooses in each head.
    """
    votes_AF = attention_ANF[:, -queries_AWE.shape[1] :].sum(1)
    return torch.nn.functional.avg_pool1d(votes_AF, POOLED, stride=1, padding=POOLED // 2).mean(0)


@cache_policy
def quest(keys_AFE: torch.Tensor, queries_AWE: torch.Tensor, attention_ANF: torch.Tensor) -> torch.Tensor:
    """Pages whose keys may give the largest score, by their least and largest value in each channel.

    Tang et al. 2024, arXiv 2406.10774: no key of the page can give the query q more than

        sum over channels d of max(q_d min_d, q_d max_d)

    Theirs chooses in each head; here heads vote by the softmax of these bounds, scaled as scores are, over
    the pages. Of a page that the budget holds in part, the nearest tokens are kept.
    """
    last_AE = queries_AWE[:, -1]
    bounds_PA = [
        torch.maximum(last_AE * page_APE.amin(1), last_AE * page_APE.amax(1)).sum(-1)
        for page_APE in keys_AFE.split(PAGE, dim=1)
    ]
    votes_P = (torch.stack(bounds_PA) / keys_AFE.shape[-1] ** 0.5).softmax(0).mean(1)
    return votes_P.repeat_interleave(PAGE)[: keys_AFE.shape[1]]
