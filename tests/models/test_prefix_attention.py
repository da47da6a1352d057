"""Attention to a shared prefix and to a sequence's own rows equals attention to both in one, written out."""

import math

import pytest
import torch

from pipeline.models.attention import attend

B, S, P, H, E = 3, 5, 4, 4, 8


def _written_out(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor
) -> torch.Tensor:
    sharing = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(sharing, 1), values.repeat_interleave(sharing, 1)
    scores = (query.double() @ keys.double().transpose(-1, -2)) / math.sqrt(E)
    return scores.masked_fill(~visible, -math.inf).softmax(-1) @ values.double()


@pytest.mark.parametrize("num_groups", [4, 2, 1])
@pytest.mark.parametrize("mask", [None, "bool", "added"])
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_against_attention_written_out(
    num_groups: int, mask: str | None, apart: bool, dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(num_groups)
    query = torch.randn(B, H, S, E, generator=generator).to(dtype)
    key, value = (torch.randn(B, num_groups, S, E, generator=generator).to(dtype) for _ in "kv")
    past = tuple(torch.randn(1, num_groups, P, E, generator=generator).to(dtype) for _ in "kv")
    visible = torch.ones(1, 1, S, S, dtype=torch.bool).tril()
    if mask is not None:
        visible[..., 3:, 1] = False
    given = {None: None, "bool": visible, "added": torch.zeros(1, 1, S, S).to(dtype)}[mask]
    if mask == "added":
        given = given.masked_fill(~visible, -math.inf)
    with torch.set_grad_enabled(not apart):  # derivatives need the one pass over both
        found = attend(query, key, value, past, given)
    keys, values = (
        torch.cat((of_past.expand(B, -1, -1, -1), own), dim=2)
        for of_past, own in zip(past, (key, value), strict=True)
    )
    seen = torch.nn.functional.pad(visible, (P, 0), value=True)
    torch.testing.assert_close(
        found.double(), _written_out(query, keys, values, seen), rtol=0, atol=tolerance
    )


def test_fewer_queries_than_keys() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(B, H, 2, E, generator=generator)
    key, value = (torch.randn(B, H, S, E, generator=generator) for _ in "kv")
    past = tuple(torch.randn(1, H, P, E, generator=generator) for _ in "kv")
    visible = torch.ones(S, S, dtype=torch.bool).tril()[[1, 4]][None, None]
    with torch.no_grad():
        found = attend(query, key, value, past, visible)
    keys, values = (
        torch.cat((of_past.expand(B, -1, -1, -1), own), dim=2)
        for of_past, own in zip(past, (key, value), strict=True)
    )
    seen = torch.nn.functional.pad(visible, (P, 0), value=True)
    torch.testing.assert_close(found.double(), _written_out(query, keys, values, seen), rtol=0, atol=1e-6)
