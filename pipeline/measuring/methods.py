"""Attention rollout: the attention of all layers multiplied, with each row's own share kept.

Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", arXiv 2005.00928. Of a layer, A is the
mean attention of its heads; half of what a row holds comes from itself, by the residual stream:

    rollout = Ā_n ··· Ā_2 Ā_1,   Ā = (A + 1) / 2

The score of a far token is its place in the row that predicts the target. A row of it sums to 1.

Shapes: S rows of a sequence, T query rows, F far-context positions, H heads.

Context length probing: what a prediction changes by when the context reaches one token further back.

Cífka and Liutkus 2023, "Black-box language model explanation by context length probing", arXiv 2212.14815.
The score of far token i is the difference that the two contexts make that begin at i and right behind it:

    score(i) = loss(t | from i + 1 on) - loss(t | from i on)

so that the scores of all far tokens add up to L_short - L_long (a test). One pass over the tokens from a
start on serves all targets. Theirs restarts the position IDs at every start, as a text cut off has it; here
tokens keep theirs. In a background what stands before the start is another document's.

Shapes: L chunk, S rows of the packed sequence, T targets, F far-context positions (of the last target),
E = F + 1 starts, B starts of a batch, R rows of a pass.

Input times gradient: what each token's embedding, along itself, does to the target's log-probability.

Shrikumar, Greenside, Shcherbina and Kundaje 2016, "Not Just a Black Box", arXiv 1605.01713; by captum
(Kokhlikyan et al. 2020, arXiv 2009.07896), the extra `attribution`. The score of token i is

    sum over d of e_i[d] · ∂ ln p(x_t | long) / ∂ e_i[d]

with e_i its embedding: to first order, what ln p loses where the embedding is shrunk to 0.

Shapes: S rows of a sequence, T query rows, F far-context positions, D width.

Integrated gradients: input times the mean gradient on the way from no embedding to the token's own.

Sundararajan, Taly and Yan 2017, "Axiomatic Attribution for Deep Networks", arXiv 1703.01365; by captum
(Kokhlikyan et al. 2020, arXiv 2009.07896), the extra `attribution`. All embeddings of the long context grow
from 0, along a straight line, at the places of a Gauss-Legendre quadrature, captum's own choice. So the
scores of all tokens, those of the short context included, add up to ln p(x_t | long) less what ln p is
where every embedding is 0.

Shapes: T targets, F far-context positions, S rows of a sequence, D width.

Learned attention: the attention of each head, weighted by how well it tells what leaving tokens out does.

Cohen-Wang, Chuang and Madry 2025, "Learning to Attribute with Attention" (AT2), arXiv 2504.13752. The score
of far token i is the sum over heads of the head's weight times its attention from the row that predicts the
target to i. How the weights are fitted, and what differs from theirs: `measuring/methods.py`.

Shapes: T targets, F far-context positions, S rows of a sequence, H heads of a layer.

ContextCite: a sparse linear model that stands in for the language model on subsets of the far context.

Cohen-Wang, Shah, Georgiev and Madry 2024, "ContextCite: Attributing Model Generation to Context", arXiv
2409.00729. Of N random subsets, each token in with the same probability, all targets of a chunk are measured
in the same passes. For each target a Lasso is fitted, with the package's penalty and its standardized
features: whether each far token is in the subset -> the logit of the target's probability, or minus the
divergence. The score of a token is its weight. Theirs has sentences as sources, ours tokens; with fewer
subsets than tokens the penalty picks the few.

Shapes: T targets, F far-context positions (of the last target), N subsets.

One weight an attention head, fitted so that weighted attention tells what leaving tokens out does.

As AT2 does (Cohen-Wang, Chuang and Madry 2025, "Learning to Attribute with Attention", arXiv 2504.13752): the
attention of all heads from the row that predicts a target to a far token are the features, what leaving that
token out does is the outcome. Theirs is fitted to the effects of random subsets, ours to those of single
tokens, which the engine tells exactly. Features and outcomes are centred within a target, as what counts is
the order of a target's tokens. Their loss, a correlation, gives every example one weight; here a target
counts as much as its effects are large: of one token most effects are noise, and equal weights fitted that.
Ridge regression, by sums over targets: no example is kept.

Shapes: T targets, H heads of all layers, F far-context positions.
"""

import logging
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from captum.attr import InputXGradient, IntegratedGradients
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from pipeline.cli import InputError
from pipeline.measuring.contexts import Batching, HeadWeights, Measured, PackedSequence
from pipeline.measuring.far_context import FarContext
from pipeline.models.interface import (
    CausalLM,
    InspectableLM,
    Predictions,
    Prefix,
    losses_and_divergences,
)


def attention_rollout(context: FarContext) -> np.ndarray:
    """What the row that predicts each target holds of each far token: [T, F].

    Blind to the target. Cost: n / m, and in memory the mean attention of all rows in every layer.
    """
    return context.look_inside("attention_rollout", rollout)


def rollout(
    model: InspectableLM,
    token_ids_1S: torch.Tensor,
    position_ids_1S: torch.Tensor,
    visible_1SS: torch.Tensor | None,
    query_rows_T: torch.Tensor,
    *_: Any,
) -> torch.Tensor:
    """The rows of the rollout that belong to the query rows: float32 [T, S]."""
    of_layers: list[torch.Tensor] = []
    model.watch_attention(
        token_ids_1S, position_ids_1S, visible_1SS, None, lambda all_HSS: of_layers.append(all_HSS.mean(0))
    )
    held_TS = torch.nn.functional.one_hot(query_rows_T, token_ids_1S.shape[1]).float()
    for mean_SS in reversed(of_layers):  # from the last layer down: T rows, not S
        held_TS = (held_TS @ mean_SS + held_TS) / 2
    return held_TS


def context_length_probing(context: FarContext) -> np.ndarray:
    """What reaching back to each far token lowers the loss by: [T, F], nats.

    It looks at the target. Cost: the sum over starts i = 1 ... F - 1 of n - i, with F the last target's, and
    in a background F to read it; the long and the short context are measured anyway.
    """
    return _differences(context.once(measured_from_each_start).losses)


def context_length_probing_divergence(context: FarContext) -> np.ndarray:
    """What reaching back to each far token brings the prediction nearer to the long context's: [T, F], nats.

    Blind to the target; it fits the prediction. Cost: the passes of context_length_probing, shared.
    """
    return _differences(context.once(measured_from_each_start).divergences)


def _differences(values_TE: np.ndarray) -> np.ndarray:
    return np.diff(values_TE.astype(np.float64))  # in which float32 differences are exact


def measured_from_each_start(context: FarContext) -> Measured:
    """loss(t | the tokens from each start on), and its divergence: [T, E] each, NaN behind the short context.

    Start 0 is the long context; the start of t's short context is that or, in a background, the baseline.
    """
    num_far_T = context.num_far_tokens_T
    of_fills = [_behind_first(context, fill_L) for fill_L in context.fills]
    predictions, every_T = context.predictions, torch.arange(len(num_far_T), device=context.model.device)
    long_divergences_T = context.reference.divergences(predictions.log_probs_TV, every_T)
    ends = zip(
        (context.long_losses_T, long_divergences_T.cpu().numpy()),
        context.background or context.short,
        zip(*of_fills, strict=True),
        strict=True,
    )
    return Measured(*(_between(long_T, base_T, parts, num_far_T) for long_T, base_T, parts in ends))


def _between(
    long_T: np.ndarray, baseline_T: np.ndarray, parts: tuple[np.ndarray, ...], num_far_T: np.ndarray
) -> np.ndarray:
    """[T, E] of the two ends and, as a mean over fills, what lies between."""
    values_TE = np.mean(parts, axis=0)
    values_TE[:, 0] = long_T
    values_TE[np.arange(len(num_far_T)), num_far_T] = baseline_T
    values_TE[np.arange(values_TE.shape[1]) > num_far_T[:, None]] = np.nan
    return values_TE


def _behind_first(context: FarContext, fill_L: np.ndarray | None) -> Measured:
    """[T, E] each, right from start 1 up to right before each target's short context."""
    num_starts = int(context.num_far_tokens_T[-1]) + 1
    parts, first = [], 0
    for sequence in context.sequences:
        targets = slice(first, first + len(sequence.target_ids_T))
        of_sequence = _of_sequence(
            context.model, sequence, context.measurement.batching, context.reference.at(targets), fill_L
        )
        parts.append([_padded(values_ET, num_starts).T for values_ET in of_sequence])
        first = targets.stop
    return Measured(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def _padded(values_ET: np.ndarray, num_starts: int) -> np.ndarray:
    """Values of the starts from 1 on, with NaN for start 0 and those that are missing."""
    return np.pad(values_ET, ((1, num_starts - 1 - len(values_ET)), (0, 0)), constant_values=np.nan)


@dataclass(frozen=True, eq=False)
class _Pass:
    """One forward pass, a sequence a start."""

    token_ids_BR: np.ndarray
    position_ids_BR: np.ndarray
    """Or a single row for all."""
    visible_BRK: np.ndarray | None
    query_rows_BT: np.ndarray
    prefix: Prefix | None


def _of_sequence(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    reference: Predictions,
    fill_L: np.ndarray | None,
) -> list[np.ndarray]:
    """Losses and divergences of the sequence's targets from the starts 1 on: [F - 1, T] each."""
    starts_E = np.arange(1, sequence.num_far_tokens_T[-1])
    before = None if fill_L is None else _read(model, fill_L[: len(starts_E)])
    num_targets = len(sequence.target_ids_T)
    results: list[list[np.ndarray]] = [[np.empty((0, num_targets), np.float32)] for _ in range(2)]
    while len(starts_E):
        first = int(starts_E[0])
        num_rows, num_before = len(sequence.token_ids_S) - first, 0 if before is None else first
        # Starts within a quarter of the rows keep the rows run in vain to an eighth.
        num_fitting = batching.num_sequences(model, num_rows, num_before)
        starts_B = starts_E[: max(1, min(num_fitting, num_rows // 4))]
        with batching.halved_where_memory_runs_out(len(starts_B), num_rows):
            if fill_L is None or before is None:
                one_pass = _cut_off(sequence, starts_B)
            else:
                one_pass = _replaced(sequence, starts_B, fill_L, before.first(first))
            both = _run(model, one_pass, sequence.target_ids_T, reference)
            for values_BT, result in zip(both, results, strict=True):
                result.append(values_BT.cpu().numpy())
            starts_E = starts_E[len(starts_B) :]
    return [np.concatenate(parts) for parts in results]


def _read(model: CausalLM, token_ids_S: np.ndarray) -> Prefix:
    token_ids_1S = torch.as_tensor(token_ids_S[None], device=model.device)
    position_ids_1S = torch.arange(len(token_ids_S), device=model.device)[None]
    return model.read(token_ids_1S, position_ids_1S, None, position_ids_1S[:, -1:])[1]


def _cut_off(sequence: PackedSequence, starts_B: np.ndarray) -> _Pass:
    """Nothing before each start. Copies of the last row, which no other sees, fill up the shorter ones."""
    last = len(sequence.token_ids_S) - 1
    rows_BR = starts_B[:, None] + np.arange(last + 1 - starts_B[0])
    is_there_BR = rows_BR <= last
    rows_BR = rows_BR.clip(max=last)
    visible_BRK = None
    if sequence.visible_SS is not None:
        visible_BRK = sequence.visible_SS[rows_BR[:, :, None], rows_BR[:, None, :]] & is_there_BR[:, None]
    return _Pass(
        sequence.token_ids_S[rows_BR],
        sequence.position_ids_S[rows_BR],
        visible_BRK,
        # A query row before the start is that of a target whose short context it is; its entry is blanked.
        (sequence.query_rows_T - starts_B[:, None]).clip(min=0),
        None,
    )


def _replaced(sequence: PackedSequence, starts_B: np.ndarray, fill_L: np.ndarray, before: Prefix) -> _Pass:
    """Other tokens before each start, those before the first as a prefix."""
    first = int(starts_B[0])
    token_ids_BR = np.tile(sequence.token_ids_S[first:], (len(starts_B), 1))
    for row_R, start in zip(token_ids_BR, starts_B, strict=True):
        row_R[: start - first] = fill_L[first:start]
    return _Pass(
        token_ids_BR,
        sequence.position_ids_S[None, first:],
        None if sequence.visible_SS is None else sequence.visible_SS[None, first:],
        np.tile((sequence.query_rows_T - first).clip(min=0), (len(starts_B), 1)),
        before,
    )


def _run(
    model: CausalLM, one_pass: _Pass, target_ids_T: np.ndarray, reference: Predictions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and divergences of the targets: [B, T] each."""

    def on_device(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=model.device)

    queries_BT = on_device(one_pass.query_rows_BT)
    return losses_and_divergences(
        model,
        on_device(one_pass.token_ids_BR),
        on_device(one_pass.position_ids_BR),
        None if one_pass.visible_BRK is None else on_device(one_pass.visible_BRK),
        queries_BT,
        on_device(target_ids_T).expand(queries_BT.shape),
        reference,
        prefix=one_pass.prefix,
    )


LogProbs = Callable[[torch.Tensor], torch.Tensor]
"""Embeddings [B, S, D] -> ln p of every target [B, T]."""
Attribute = Callable[[LogProbs, torch.Tensor, int], torch.Tensor]
"""Given those, the embeddings of one text, [1, S, D], and which target: what each of their numbers does."""


def input_x_gradient(context: FarContext) -> np.ndarray:
    """What the embedding of each far token does to ln p of the target, to first order: [T, F], nats.

    It looks at the target. Cost: n, as captum runs a pass a target, and a backward pass through n tokens.
    """

    def attribute(log_probs: LogProbs, embedded_1SD: torch.Tensor, target_index: int) -> torch.Tensor:
        return InputXGradient(log_probs).attribute(embedded_1SD, target=target_index)

    return attributed_to_embeddings(context, "input_x_gradient", attribute)


def attributed_to_embeddings(context: FarContext, rule: str, attribute: Attribute) -> np.ndarray:
    """The sum over each far token's embedding of what `attribute` tells of its numbers: [T, F]."""

    def of_sequence(
        model: InspectableLM,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        def log_probs(embedded_BSD: torch.Tensor) -> torch.Tensor:
            return -model.losses_of_embeddings(
                embedded_BSD, position_ids_1S, visible_1SS, query_rows_T, target_ids_T
            )

        embedded_1SD = model.embed(token_ids_1S).detach().requires_grad_()
        of_targets = [attribute(log_probs, embedded_1SD, index) for index in range(len(target_ids_T))]
        return torch.cat(of_targets).detach().float().sum(-1)

    return context.look_inside(rule, of_sequence)


def integrated_gradients(context: FarContext) -> np.ndarray:
    """What the embedding of each far token does to ln p of the target, on the way from 0: [T, F], nats.

    It looks at the target. Cost: G n for G places on the way, and as many backward passes through n tokens.
    """
    num_steps, batching = context.measurement.num_integration_steps, context.measurement.batching

    def attribute(log_probs: LogProbs, embedded_1SD: torch.Tensor, target_index: int) -> torch.Tensor:
        # A pass that is kept for its derivative takes several times the memory of one that is not.
        num_rows = embedded_1SD.shape[1]
        num_sequences = max(1, batching.num_sequences(context.model, num_rows) // 4)
        return IntegratedGradients(log_probs).attribute(
            embedded_1SD, target=target_index, n_steps=num_steps, internal_batch_size=num_sequences
        )

    return attributed_to_embeddings(context, "integrated_gradients", attribute)


def learned_attention(context: FarContext) -> np.ndarray:
    """Attention weighted by heads whose weights are fitted to influences: [T, F].

    Blind to the target; its weights were fitted to other targets. Cost: n / m, once the weights are there.
    They cost the leave-one-out passes of the chunks that they are fitted to, once a model.
    """
    return _weighted(context, "losses_H")


def learned_attention_divergence(context: FarContext) -> np.ndarray:
    """The same, with weights fitted to how far leaving one out moves the prediction: [T, F].

    Blind to the target. Cost: as learned_attention.
    """
    return _weighted(context, "divergences_H")


def _weighted(context: FarContext, criterion: str) -> np.ndarray:
    head_weights = context.measurement.head_weights
    if head_weights is None:
        raise InputError(
            "rule 'learned_attention' has no weights of heads for this model; influential_tokens fits them"
            " to training tokens before it measures"
        )
    weights_H = torch.as_tensor(getattr(head_weights, criterion), device=context.model.device).float()

    def weigh(
        model: InspectableLM,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        *_: Any,
    ) -> torch.Tensor:
        of_layers: list[torch.Tensor] = []

        def note(attention_HTS: torch.Tensor) -> None:
            first = sum(len(layer) for layer in of_layers)
            weights = weights_H[first : first + len(attention_HTS)]
            of_layers.append(weights[:, None, None] * attention_HTS)

        model.watch_attention(token_ids_1S, position_ids_1S, visible_1SS, query_rows_T, note)
        return torch.cat(of_layers).sum(0)

    return context.look_inside("learned_attention", weigh)


PENALTY = 0.01
"""Of the sum of weights' sizes, features being standardized."""
MOST_ROUNDS = 1000
"""Of coordinate descent."""
_SUREST = 2.0**-24
"""Nats: a loss below float32's last bit is taken for this, as its logit would be infinite."""
logger = logging.getLogger("pipeline")


def surrogate(context: FarContext) -> np.ndarray:
    """How much each far token raises the logit of the target's probability: [T, F].

    It looks at the target, though no single context can be fitted. Cost: N (F + m s) / m for N subsets, with
    F the last target's.
    """
    return _weights(context, logits_of_losses(context.once(_measured_in_subsets).losses))


def surrogate_divergence(context: FarContext) -> np.ndarray:
    """How much each far token brings the prediction nearer to that of the long context: [T, F], nats.

    Blind to the target; it fits the prediction, on average. Cost: the passes of surrogate, shared.
    """
    return _weights(context, -context.once(_measured_in_subsets).divergences.astype(np.float64))


def subsets_of(context: FarContext) -> np.ndarray:
    """The random subsets, whether each far position is in: bool [N, F]."""
    measurement, num_far = context.measurement, int(context.num_far_tokens_T[-1])
    draws_NF = np.random.default_rng([*measurement.seed, 4]).random((measurement.num_subsets, num_far))
    return draws_NF < measurement.kept_fraction


def _measured_in_subsets(context: FarContext) -> Measured:
    return context.in_subsets(context.once(subsets_of))


def logits_of_losses(losses: np.ndarray) -> np.ndarray:
    """Ln p - ln (1 - p) of probabilities that are given as losses, -ln p in nats."""
    losses = np.maximum(losses.astype(np.float64), _SUREST)
    return -losses - np.log(-np.expm1(-losses))


def _weights(context: FarContext, outputs_NT: np.ndarray) -> np.ndarray:
    kept_NF, num_far_T = context.once(subsets_of), context.num_far_tokens_T
    weights_TF = np.full((len(num_far_T), kept_NF.shape[1]), np.nan)
    for target, outputs_N in enumerate(outputs_NT.T):
        num_far = int(num_far_T[target])
        weights_F, is_converged = sparse_weights(kept_NF[:, :num_far], outputs_N)
        weights_TF[target, :num_far] = weights_F
        if not is_converged:
            logger.warning(
                "the linear model of rule surrogate has not converged in %d rounds for the target at place %d"
                " of %s (far context: %s); its last weights are taken",
                MOST_ROUNDS, context.lengths.targets_T[target], context.measurement.where, context.name,
            )  # fmt: skip
    return weights_TF


def sparse_weights(kept_NF: np.ndarray, outputs_N: np.ndarray) -> tuple[np.ndarray, bool]:
    """The weight of each token, in units of the output: float64 [F]; and whether the fit has converged."""
    spread_F = kept_NF.std(0)
    spread_F[spread_F == 0] = 1  # always in, or never: nothing is to be told of it
    lasso = Lasso(alpha=PENALTY, max_iter=MOST_ROUNDS)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ConvergenceWarning)
        lasso.fit((kept_NF - kept_NF.mean(0)) / spread_F, outputs_N)
    is_converged = not any(issubclass(one.category, ConvergenceWarning) for one in told)
    return lasso.coef_ / spread_F, is_converged


RIDGE = 1e-3
"""What is added to the features' variances, as a share of their mean."""


def attention_of_heads(context: FarContext, rule: str) -> np.ndarray:
    """Attention of the row that predicts each target to each far token, by head: float32 [H, T, F].

    Of a chunk's own far context.
    """
    of_heads: list[np.ndarray] = []

    def watch(
        model: InspectableLM,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        *_: Any,
    ) -> torch.Tensor:
        def note(weights_HTS: torch.Tensor) -> None:
            of_heads.append(weights_HTS[..., : context.num_far_tokens_T[-1]].cpu().numpy())

        model.watch_attention(token_ids_1S, position_ids_1S, visible_1SS, query_rows_T, note)
        return torch.zeros(len(query_rows_T), token_ids_1S.shape[1])

    context.look_inside(rule, watch)
    return np.concatenate(of_heads)


def fitted_head_weights(contexts: Iterable[FarContext], rule: str) -> HeadWeights:
    """The weights of all targets of the own far contexts of several chunks.

    Args:
        contexts: each is read, every far token left out in turn, and forgotten.
        rule: whose messages these are.
    """
    products_HH: np.ndarray | float = 0.0
    outcomes_H2: np.ndarray | float = 0.0
    for context in contexts:
        heads_HTF = attention_of_heads(context, rule).astype(np.float64)
        effects = context.influence_TF, context.divergence_TF
        for target, num_far in enumerate(context.num_far_tokens_T):
            features_HF = heads_HTF[:, target, :num_far]
            features_HF = features_HF - features_HF.mean(1, keepdims=True)
            outcomes = [_centred(effect_TF[target, :num_far]) for effect_TF in effects]
            products_HH = products_HH + features_HF @ features_HF.T / num_far
            outcomes_H2 = outcomes_H2 + features_HF @ np.stack(outcomes, axis=1) / num_far
    assert isinstance(products_HH, np.ndarray), "no chunk to learn from"
    ridge = RIDGE * np.trace(products_HH) / len(products_HH)
    weights_H2 = np.linalg.solve(products_HH + ridge * np.eye(len(products_HH)), outcomes_H2)
    return HeadWeights(weights_H2[:, 0], weights_H2[:, 1])


def _centred(values_F: np.ndarray) -> np.ndarray:
    return values_F.astype(np.float64) - values_F.mean(dtype=np.float64)
