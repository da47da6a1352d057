"""Weights of heads: planted ones are found, the scores are the weighted attention of stock models."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hugging_face_families import make_model
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.measuring.contexts import Batching, HeadWeights, Measurement
from pipeline.measuring.far_context import FarContext, LeaveOneOut, far_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.methods import (
    attention_of_heads,
    fitted_head_weights,
    learned_attention,
    learned_attention_divergence,
)
from pipeline.models.huggingface import HuggingFaceCausalLM
from pipeline.models.olmo import OLMoCausalLM

S, L, M = 4, 24, 4
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
WEIGHTS_H = np.array([0.5, -1.0, 2.0, 0.0, 0.0, 3.0, -0.25, 1.0])  # two layers of four heads


def _contexts(lm: object, seed: int, head_weights: HeadWeights | None = None) -> dict[str, FarContext]:
    own, other = np.random.default_rng(seed).integers(0, 48, (2, L))
    return far_contexts(Measurement(lm, LENGTHS, Batching(200), head_weights=head_weights), own, other)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_attention_and_scores_are_those_of_stock_models(family: str) -> None:
    stock = make_model(family, 4, attention="eager")
    weights = HeadWeights(WEIGHTS_H, -WEIGHTS_H[::-1].copy())
    contexts = _contexts(HuggingFaceCausalLM(make_model(family, 4)), 3, weights)
    chunks = dict(zip(contexts, np.random.default_rng(3).integers(0, 48, (2, L)), strict=True))
    for name, context in contexts.items():
        for index, target in enumerate(range(L - M, L)):
            num_far = target - S
            tokens = np.concatenate([chunks[name][:num_far], chunks["own"][num_far:target]])
            with torch.inference_mode():
                layers = stock(
                    input_ids=torch.tensor(tokens)[None], output_attentions=True, use_cache=False
                ).attentions
            heads_HF = np.concatenate([layer[0, :, -1, :num_far].numpy() for layer in layers])
            if name == "own":
                found_HF = attention_of_heads(context, "learned_attention")[:, index, :num_far]
                np.testing.assert_allclose(found_HF, heads_HF, atol=1e-5)
            for scores_TF, weights_H in (
                (learned_attention(context), weights.losses_H),
                (learned_attention_divergence(context), weights.divergences_H),
            ):
                np.testing.assert_allclose(scores_TF[index, :num_far], weights_H @ heads_HF, atol=1e-4)
                assert np.isnan(scores_TF[index, num_far:]).all()


def test_planted_weights_are_found(make_olmo: Callable[..., OLMo]) -> None:
    lm = OLMoCausalLM(make_olmo(seed=2))
    contexts = [_contexts(lm, seed)["own"] for seed in range(8)]
    other_H = np.roll(WEIGHTS_H, 3)
    for context in contexts:
        heads_HTF = attention_of_heads(context, "learned_attention").astype(np.float64)
        is_far_TF = np.arange(heads_HTF.shape[2]) < context.num_far_tokens_T[:, None]
        planted = [
            np.where(is_far_TF, 7 + np.tensordot(weights_H, heads_HTF, axes=1), np.nan)
            for weights_H in (WEIGHTS_H, other_H)
        ]
        context.__dict__["_leave_one_out"] = LeaveOneOut(*planted)
    found = fitted_head_weights(contexts, "learned_attention")
    for found_H, planted_H in ((found.losses_H, WEIGHTS_H), (found.divergences_H, other_H)):
        assert np.corrcoef(found_H, planted_H)[0, 1] > 0.99


def test_it_is_a_ridge_regression_within_targets(make_olmo: Callable[..., OLMo]) -> None:
    lm = OLMoCausalLM(make_olmo(seed=2))
    contexts = [_contexts(lm, seed)["own"] for seed in (0, 1)]
    rows, outcomes = [], []
    for context in contexts:
        heads_HTF = attention_of_heads(context, "learned_attention").astype(np.float64)
        for index, num_far in enumerate(context.num_far_tokens_T):
            effects_F = context.influence_TF[index, :num_far].astype(np.float64)
            effects_F = effects_F - effects_F.mean()
            heads_FH = heads_HTF[:, index, :num_far].T
            rows.append((heads_FH - heads_FH.mean(0)) / np.sqrt(num_far))
            outcomes.append(effects_F / np.sqrt(num_far))
    features, num_heads = np.concatenate(rows), 8
    ridge = np.sqrt(1e-3 * (features**2).sum() / num_heads)
    features = np.concatenate([features, ridge * np.eye(num_heads)])
    expected, *_ = np.linalg.lstsq(features, np.concatenate([*outcomes, np.zeros(num_heads)]), rcond=None)
    found_H = fitted_head_weights(contexts, "learned_attention").losses_H
    np.testing.assert_allclose(found_H, expected, rtol=1e-6)


def test_without_weights_it_is_refused(make_olmo: Callable[..., OLMo]) -> None:
    context = _contexts(OLMoCausalLM(make_olmo()), 0)["own"]
    with pytest.raises(InputError, match="'learned_attention' has no weights of heads for this model"):
        learned_attention(context)
