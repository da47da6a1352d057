"""Attention of our own, with log-sum-exps and to a shared prefix, equals attention written out."""

import math

import pytest
import torch
from cuda_kernels import NAMES, write_out_cuda_kernels

from sparsity_length.models.attention import alibi_slopes, attend, attention_and_log_sum_exp
from sparsity_length.models.interface import Prefix, Running

B = 2
S = 5
K = 7
H = 4
E = 8
DTYPES = {torch.float32: 1e-6, torch.bfloat16: 2e-2}  # dtype -> tolerance


def _random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _scores(
    query: torch.Tensor, keys: torch.Tensor, seen: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    scores = (query.double() @ keys.double().transpose(-1, -2)) * (scale or 1 / math.sqrt(E))
    return scores.masked_fill(~seen, -math.inf)


@pytest.mark.parametrize("kernels", ["of the CPU", "of CUDA"])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added", "of each sequence"])
def test_attention_and_log_sum_exp(kernels: str, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = write_out_cuda_kernels(monkeypatch) if kernels == "of CUDA" else None
    visible = torch.rand(B, 1, S, K, generator=torch.Generator().manual_seed(9)) < 0.6
    visible[..., 0] = True
    seen = torch.ones(S, K, dtype=torch.bool)
    seen = {"none": seen, "causal": seen.tril(), "of each sequence": visible}.get(mask, visible[:1])
    for dtype, tolerance in DTYPES.items():
        given = {"bool": seen, "of each sequence": visible, "added": torch.zeros(1, 1, S, K, dtype=dtype)}
        given["added"].masked_fill_(~visible[:1], -math.inf)
        query, key, value = (
            _random(B, H, size, E, seed=seed, dtype=dtype) for seed, size in enumerate((S, K, K))
        )
        for scale in (None, 0.2):
            attended, log_sum_exp = attention_and_log_sum_exp(
                query, key, value, given.get(mask), is_causal=mask == "causal", scale=scale
            )
            scores = _scores(query, key, seen, scale)
            expected = scores.softmax(-1) @ value.double()
            torch.testing.assert_close(attended.double(), expected, rtol=0, atol=tolerance)
            sums = scores.logsumexp(-1)
            torch.testing.assert_close(log_sum_exp.double(), sums, rtol=0, atol=max(tolerance, 2e-6))
    if calls is not None:
        is_flash = mask in ("none", "causal")  # in half precision only
        assert calls == ({NAMES[0]: 2, NAMES[1]: 2} if is_flash else {NAMES[1]: 4})


@pytest.mark.parametrize("kernels", ["of the CPU", "of CUDA"])
@pytest.mark.parametrize("num_groups", [4, 2, 1])
@pytest.mark.parametrize("mask", ["none", "bool", "added", "fewer queries"])
def test_attention_to_a_shared_prefix(
    kernels: str, num_groups: int, mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = write_out_cuda_kernels(monkeypatch) if kernels == "of CUDA" else None
    num_past = 4
    rows = [1, 4] if mask == "fewer queries" else list(range(S))
    visible = torch.ones(1, 1, S, S, dtype=torch.bool).tril()
    if mask in ("bool", "added"):
        visible[..., 3:, 1] = False
    visible = visible[:, :, rows]
    seen = torch.nn.functional.pad(visible, (num_past, 0), value=True)
    for dtype, tolerance in DTYPES.items():
        query = _random(B, H, S, E, seed=0, dtype=dtype)[:, :, rows]
        key, value = (_random(B, num_groups, S, E, seed=seed, dtype=dtype) for seed in (1, 2))
        past = tuple(_random(1, num_groups, num_past, E, seed=seed, dtype=dtype) for seed in (3, 4))
        given = None if mask == "none" else visible
        if mask == "added":
            given = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -math.inf)
        keys, values = (
            torch.cat((of_past.expand(B, -1, -1, -1), own), dim=2).repeat_interleave(H // num_groups, 1)
            for of_past, own in zip(past, (key, value), strict=True)
        )
        running = Running(Prefix((past,), torch.zeros(1, num_past)), torch.empty(0), None, None, None)
        expected = _scores(query, keys, seen).softmax(-1) @ values.double()
        for goes_apart in (True, False):  # derivatives need the one pass over both
            with torch.set_grad_enabled(not goes_apart):
                found = attend(running, 0, query, key, value, given).double()
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance, msg=f"{dtype}, {goes_apart}")
    assert calls is None or calls.total() == 4  # in each dtype of the prefix and of the own rows


@pytest.mark.parametrize("num_groups", [4, 2])
def test_alibi_by_position_ids(num_groups: int) -> None:
    slopes = alibi_slopes(H)
    assert slopes.tolist() == [1 / 4, 1 / 16, 1 / 64, 1 / 256]
    num_past = 2
    # Far apart, repeated, and beyond 256; a row of each sequence has an ID of its own.
    past_ids = torch.tensor([[0, 300]])
    own_ids = torch.tensor([[301, 302, 302, 700, 701], [301, 303, 310, 311, 900]])
    ids = torch.cat((past_ids.expand(B, -1), own_ids), dim=1)
    distances = own_ids[:, :, None] - ids[:, None]
    seen = torch.nn.functional.pad(torch.ones(1, 1, S, S, dtype=torch.bool).tril(), (num_past, 0), value=True)
    for dtype, tolerance in DTYPES.items():
        query = _random(B, H, S, E, seed=0, dtype=dtype)
        key, value = (_random(B, num_groups, S, E, seed=seed, dtype=dtype) for seed in (1, 2))
        past_key, past_value = (
            _random(1, num_groups, num_past, E, seed=seed, dtype=dtype) for seed in (3, 4)
        )
        keys, values = (
            torch.cat((of_past.expand(B, -1, -1, -1), own), dim=2).repeat_interleave(H // num_groups, 1)
            for of_past, own in ((past_key, key), (past_value, value))
        )
        biased = _scores(query, keys, seen) - slopes[:, None, None] * distances[:, None]
        expected = biased.softmax(-1) @ values.double()
        # The rows of the prefix are read first, so that it is kept as later rows find it.
        read: list[tuple[torch.Tensor, torch.Tensor]] = []
        nothing = Prefix((), past_ids[:, :0])
        before = Running(nothing, past_ids, None, None, read, slopes_H=slopes)
        attend(before, 0, query[:1, :, :num_past], past_key, past_value, None)
        running = Running(Prefix(tuple(read), past_ids), ids, None, None, None, slopes_H=slopes)
        for goes_apart in (True, False):
            with torch.set_grad_enabled(not goes_apart):
                found = attend(running, 0, query, key, value, None).double()
            torch.testing.assert_close(found, expected, rtol=0, atol=max(tolerance, 3e-5))
