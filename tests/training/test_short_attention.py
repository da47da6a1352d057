"""Plain products in the place of the fused kernel: the same attention."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from sparsity_length.training.trainer import short_attention


def heads(num_tokens: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Queries, keys, values, of deviation 2, so that attention has something to choose."""
    generator = torch.Generator().manual_seed(num_tokens)
    draws = [2 * torch.randn(2, 4, num_tokens, 16, generator=generator) for _ in range(3)]
    return [part.to(dtype).requires_grad_() for part in draws]


def with_gradients(attended: torch.Tensor, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """What was gathered, and the derivatives of a sum of it in which every value counts otherwise."""
    weights = torch.linspace(-1, 1, attended.numel()).view(attended.shape)
    return [attended.detach(), *torch.autograd.grad((weights * attended.float()).sum(), parts)]


def test_in_bfloat16_its_error_is_of_the_size_of_the_fused_kernels() -> None:
    for num_tokens in (1, 2, 64, 300):
        parts = heads(num_tokens, torch.bfloat16)
        exact_parts = [part.detach().double().requires_grad_() for part in parts]
        exact = with_gradients(scaled_dot_product_attention(*exact_parts, is_causal=True), exact_parts)
        fused = with_gradients(scaled_dot_product_attention(*parts, is_causal=True), parts)
        composed = short_attention(scaled_dot_product_attention, *parts, is_causal=True)
        ours = with_gradients(composed, parts)
        for of_exact, of_fused, of_ours in zip(exact, fused, ours, strict=True):
            assert of_ours.dtype == torch.bfloat16 and of_ours.shape == of_exact.shape
            error, its_error = ((of - of_exact).double().norm() for of in (of_ours, of_fused))
            assert error <= 5 * its_error, num_tokens
    assert not torch.equal(fused[0], ours[0])
