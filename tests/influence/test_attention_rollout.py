"""Attention rollout, multiplied out again from the attention that stock models show of one target's text."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hugging_face_families import make_model
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import far_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.methods import attention_rollout
from pipeline.models.huggingface import HuggingFaceCausalLM
from pipeline.models.olmo import OLMoCausalLM

S, L, M = 4, 18, 3
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
Attention = Callable[[np.ndarray], list[np.ndarray]]
"""A text -> [H, S, S] of every layer."""


def _hugging_face(family: str) -> tuple[HuggingFaceCausalLM, Attention]:
    stock = make_model(family, 4, attention="eager")

    @torch.inference_mode()
    def attention(tokens: np.ndarray) -> list[np.ndarray]:
        output = stock(input_ids=torch.tensor(tokens)[None], output_attentions=True, use_cache=False)
        return [layer[0].numpy() for layer in output.attentions]

    return HuggingFaceCausalLM(make_model(family, 4)), attention


def _olmo(make_olmo: Callable[..., OLMo]) -> tuple[OLMoCausalLM, Attention]:
    stock = make_olmo(seed=3, n_kv_heads=2)

    def attention(tokens: np.ndarray) -> list[np.ndarray]:
        rotated: list[tuple[np.ndarray, np.ndarray]] = []
        with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
            for block in stock.transformer.blocks:
                original = block._scaled_dot_product_attention

                def note(
                    q: torch.Tensor,
                    k: torch.Tensor,
                    *rest: object,
                    original: Callable = original,
                    **more: object,
                ) -> torch.Tensor:
                    rotated.append((q[0].numpy(), k[0].numpy()))
                    return original(q, k, *rest, **more)

                patch.setattr(block, "_scaled_dot_product_attention", note)
            stock(torch.tensor(tokens)[None])
        layers = []
        for query_HSE, key_GSE in rotated:
            key_HSE = key_GSE.repeat(2, axis=0)
            scores_HSS = query_HSE @ key_HSE.transpose(0, 2, 1) / math.sqrt(8)
            weights_HSS = np.exp(scores_HSS) * np.tri(len(tokens))
            layers.append(weights_HSS / weights_HSS.sum(-1, keepdims=True))
        return layers

    return OLMoCausalLM(make_olmo(seed=3, n_kv_heads=2)), attention


@pytest.mark.parametrize("family", ["olmo", "llama", "gemma2", "gpt2"])
def test_every_row_is_the_product_of_the_layers(make_olmo: Callable[..., OLMo], family: str) -> None:
    lm, attention = _olmo(make_olmo) if family == "olmo" else _hugging_face(family)
    own, other = np.random.default_rng(17).integers(0, 48, (2, L))
    for name, context in far_contexts(Measurement(lm, LENGTHS, Batching(100)), own, other).items():
        found = attention_rollout(context)
        for index, target in enumerate(range(L - M, L)):
            num_far = target - S
            far = own if name == "own" else other
            layers = attention(np.concatenate([far[:num_far], own[num_far:target]]))
            assert len(layers) == 2
            product_SS = np.eye(target)
            for heads_HSS in layers:
                product_SS = (0.5 * heads_HSS.mean(0) + 0.5 * np.eye(target)) @ product_SS
            np.testing.assert_allclose(product_SS.sum(1), 1, atol=1e-5)
            np.testing.assert_allclose(found[index, :num_far], product_SS[-1, :num_far], atol=1e-5)
            assert np.isnan(found[index, num_far:]).all()
