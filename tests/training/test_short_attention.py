"""Plain products in the place of the fused kernel: the same attention, and only where they are faster."""

from typing import Any

import pytest
import torch
from olmo.config import ModelConfig
from olmo.model import OLMo
from torch.nn.functional import scaled_dot_product_attention

from pipeline.models.olmo import blocks_of
from pipeline.training.trainer import compose_short_attention


@pytest.fixture(scope="module")
def model() -> OLMo:
    fields = {
        "d_model": 64,
        "n_heads": 4,
        "n_kv_heads": 2,
        "n_layers": 1,
        "vocab_size": 32,
        "embedding_size": 32,
    }
    model = OLMo(ModelConfig.new(**fields, rope=True, attention_dropout=0.0, init_device="cpu"))
    compose_short_attention(model)
    return model


def heads(num_tokens: int, dtype: torch.dtype, num_key_heads: int = 4) -> list[torch.Tensor]:
    """Queries, keys, values, of deviation 2, so that attention has something to choose."""
    generator = torch.Generator().manual_seed(num_tokens)
    shapes = ((2, number, num_tokens, 16) for number in (4, num_key_heads, num_key_heads))
    return [(2 * torch.randn(shape, generator=generator)).to(dtype).requires_grad_() for shape in shapes]


def with_gradients(attended: torch.Tensor, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """What was gathered, and the derivatives of a sum of it in which every value counts otherwise."""
    weights = torch.linspace(-1, 1, attended.numel()).view(attended.shape)
    return [attended.detach(), *torch.autograd.grad((weights * attended.float()).sum(), parts)]


@pytest.mark.parametrize("num_tokens", [1, 2, 64, 300])
def test_in_bfloat16_its_error_is_of_the_size_of_the_fused_kernels(model: OLMo, num_tokens: int) -> None:
    parts = heads(num_tokens, torch.bfloat16)
    exact_parts = [part.detach().double().requires_grad_() for part in parts]
    exact = with_gradients(scaled_dot_product_attention(*exact_parts, is_causal=True), exact_parts)
    fused = with_gradients(scaled_dot_product_attention(*parts, is_causal=True), parts)
    ours = with_gradients(blocks_of(model)[0]._scaled_dot_product_attention(*parts, is_causal=True), parts)
    for of_exact, of_fused, of_ours in zip(exact, fused, ours, strict=True):
        assert of_ours.dtype == torch.bfloat16 and of_ours.shape == of_exact.shape
        error, its_error = ((of - of_exact).double().norm() for of in (of_ours, of_fused))
        assert error <= 5 * its_error


@pytest.mark.parametrize(
    ("num_tokens", "dtype", "num_key_heads", "settings"),
    [
        (64, torch.float32, 4, {"is_causal": True}),
        (513, torch.bfloat16, 4, {"is_causal": True}),
        (64, torch.bfloat16, 2, {"is_causal": True}),
        (64, torch.bfloat16, 4, {"attn_mask": torch.zeros(64, 64, dtype=torch.bfloat16)}),
        (64, torch.bfloat16, 4, {}),
    ],
    ids=["float32", "long", "shared keys", "mask", "not causal"],
)
def test_all_else_is_left_to_the_block(
    num_tokens: int, dtype: torch.dtype, num_key_heads: int, settings: dict[str, Any]
) -> None:
    fields = {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 1,
        "vocab_size": 32,
        "embedding_size": 32,
        "rope": True,
    }
    own, changed = (OLMo(ModelConfig.new(**fields, init_device="cpu")) for _ in range(2))
    compose_short_attention(changed)
    parts = heads(num_tokens, dtype, num_key_heads)
    ours, its = (blocks_of(of)[0]._scaled_dot_product_attention(*parts, **settings) for of in (changed, own))
    assert torch.equal(ours, its)


def test_a_composed_model_keeps_its_names_and_is_as_exact() -> None:
    fields = {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 2,
        "vocab_size": 32,
        "embedding_size": 32,
        "rope": True,
    }
    without = {"attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0}
    models = [OLMo(ModelConfig.new(**fields, **without, init_device="cpu")).train() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    compose_short_attention(models[1])
    assert models[0].state_dict().keys() == models[1].state_dict().keys()
    token_ids_BS = torch.arange(48).view(2, 24) % 32
    exact = models[0](token_ids_BS).logits
    with torch.autocast("cpu", torch.bfloat16):
        fused, ours = (model(token_ids_BS).logits.float() for model in models)
    assert not torch.equal(fused, ours)
    assert (ours - exact).norm() <= 1.5 * (fused - exact).norm()
