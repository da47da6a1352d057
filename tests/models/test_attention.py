"""Attention of our own equals attention written out; divergences hold to float64's digits, in any blocks."""

import math
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.nn.functional import pad

from sparsity_length.models import attention as log_sum_exp_attention
from sparsity_length.models import interface as causal_lm
from sparsity_length.models.attention import attend, attention_and_log_sum_exp
from sparsity_length.models.interface import Predictions, Prefix, Running, losses_and_divergences

B = 2
S = 5
K = 7
H = 4
E = 8
DTYPES = {torch.float32: 1e-6, torch.bfloat16: 2e-2}  # dtype -> tolerance


def _random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def written_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and log-sum-exps, float64; the mask says what is seen, or is added to the scores."""
    scores = (query.double() @ key.double().transpose(-1, -2)) * (scale or 1 / math.sqrt(E))
    scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
    return scores.softmax(-1) @ value.double(), scores.logsumexp(-1)


def _as_cuda(
    qkv: tuple[torch.Tensor, ...], added: torch.Tensor | None, is_causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What both kernels return first, [B, S, H, E] in memory, if they are given what they demand."""
    query, key, _ = qkv
    for tensor in qkv:
        assert tensor.stride(-1) == 1 and tensor.shape[-1] * tensor.itemsize % 16 == 0
        assert tensor.shape[:2] == query.shape[:2] and tensor.dtype == query.dtype
    everything = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    seen = everything.tril() if is_causal else everything
    attended, sums = written_out(*qkv, seen if added is None else added, scale)
    return attended.to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2), sums.float()


@pytest.fixture(params=["of the CPU", "of CUDA"])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str] | None]:
    """How often CUDA's kernels were called: written out for the CPU, where torch checks their arguments."""
    counted: Counter[str] = Counter()
    nothing = torch.empty(0)

    def flash(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[torch.Tensor | int, ...]:
        counted["flash"] += 1
        assert dropout_p == 0 and query.dtype in (torch.bfloat16, torch.float16)
        first = _as_cuda((query, key, value), None, is_causal, scale)
        return *first, nothing, nothing, 0, 0, nothing, nothing, nothing

    def efficient(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        added: torch.Tensor | None,
        compute_log_sumexp: bool,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[torch.Tensor, ...]:
        counted["efficient"] += 1
        assert compute_log_sumexp and dropout_p == 0
        if added is not None:
            assert not is_causal and added.dtype == query.dtype
            assert added.shape == (*query.shape[:3], key.shape[2])
            assert added.stride(-1) == 1 and all(stride % 8 == 0 for stride in added.stride()[:3])
        attended, sums = _as_cuda((query, key, value), added, is_causal, scale)
        return attended, pad(sums, (0, -sums.shape[-1] % 32)), nothing, nothing

    def as_on_cuda(
        *qkv: torch.Tensor, is_causal: bool, attn_mask: torch.Tensor | None, scale: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return log_sum_exp_attention._on_cuda(*qkv, attn_mask, is_causal, scale)

    if request.param == "of the CPU":
        yield None
        return
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", as_on_cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with torch.library._scoped_library("aten", "IMPL", "CPU") as library:
        library.impl("_scaled_dot_product_flash_attention", flash)
        library.impl("_scaled_dot_product_efficient_attention", efficient)
        yield counted


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added", "of each sequence"])
def test_attention_and_log_sum_exp(calls: Counter[str] | None, mask: str) -> None:
    visible = torch.rand(B, 1, S, K, generator=torch.Generator().manual_seed(9)) < 0.6
    visible[..., 0] = True
    everything = torch.ones(S, K, dtype=torch.bool)
    seen = {"none": everything, "causal": everything.tril(), "of each sequence": visible}.get(
        mask, visible[:1]
    )
    for dtype, tolerance in DTYPES.items():
        added = torch.where(seen, 0.0, -math.inf).to(dtype)
        given = {"none": None, "causal": None, "added": added}.get(mask, seen)
        qkv = [_random(B, H, size, E, seed=seed, dtype=dtype) for seed, size in enumerate((S, K, K))]
        for scale in (None, 0.2):
            found = attention_and_log_sum_exp(*qkv, given, is_causal=mask == "causal", scale=scale)
            expected = written_out(*qkv, seen, scale)
            for part, wanted, atol in zip(found, expected, (tolerance, max(tolerance, 2e-6)), strict=True):
                torch.testing.assert_close(part.double(), wanted, rtol=0, atol=atol)
    if calls is not None:
        is_flash = mask in ("none", "causal")  # in half precision only
        assert calls == ({"flash": 2, "efficient": 2} if is_flash else {"efficient": 4})


ALIBI_SLOPES = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256])
# Far apart, repeated, and beyond 256; a row of each sequence has an ID of its own.
PAST_IDS = torch.tensor([[0, 0, 299, 300]])
OWN_IDS = torch.tensor([[301, 302, 302, 700, 701], [301, 303, 310, 311, 900]])


@pytest.mark.parametrize("num_groups", [4, 2, 1])
@pytest.mark.parametrize("mask", ["none", "bool", "added", "fewer queries", "alibi"])
def test_attention_to_a_shared_prefix(calls: Counter[str] | None, num_groups: int, mask: str) -> None:
    num_past = PAST_IDS.shape[1]
    rows = [1, 4] if mask == "fewer queries" else list(range(S))
    visible = torch.ones(1, 1, S, S, dtype=torch.bool).tril()
    if mask in ("bool", "added"):
        visible[..., 3:, 1] = False
    visible = visible[:, :, rows]
    seen = pad(visible, (num_past, 0), value=True)
    ids = torch.cat((PAST_IDS.expand(B, -1), OWN_IDS), dim=1)
    slopes = ALIBI_SLOPES if mask == "alibi" else None
    distances = (OWN_IDS[:, rows, None] - ids[:, None])[:, None]
    penalties = 0 if slopes is None else slopes[:, None, None] * distances
    for dtype, tolerance in DTYPES.items():
        query = _random(B, H, S, E, seed=0, dtype=dtype)
        own = [_random(B, num_groups, S, E, seed=seed, dtype=dtype) for seed in (1, 2)]
        past = [_random(1, num_groups, num_past, E, seed=seed, dtype=dtype) for seed in (3, 4)]
        added = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -math.inf)
        given = {"bool": visible, "fewer queries": visible, "added": added}.get(mask)
        # The rows of the prefix are read first, so that it is kept as later rows find it.
        read: list[tuple[torch.Tensor, torch.Tensor]] = []
        before = Running(Prefix((), PAST_IDS[:, :0]), PAST_IDS, None, None, read, slopes_H=slopes)
        attend(before, 0, query[:1, :, :num_past], *past, None)
        running = Running(Prefix(tuple(read), PAST_IDS), ids, None, None, None, slopes_H=slopes)
        keys_and_values = [
            torch.cat((of_past.expand(B, -1, -1, -1), of_own), dim=2).repeat_interleave(H // num_groups, 1)
            for of_past, of_own in zip(past, own, strict=True)
        ]
        biases = torch.where(seen, 0.0, -math.inf) - penalties
        expected, _ = written_out(query[:, :, rows], *keys_and_values, biases)
        atol = tolerance if slopes is None else max(tolerance, 3e-5)
        for goes_apart in (True, False):  # derivatives need the one pass over both
            with torch.set_grad_enabled(not goes_apart):
                found = attend(running, 0, query[:, :, rows], *own, given).double()
            torch.testing.assert_close(found, expected, rtol=0, atol=atol, msg=f"{dtype}, {goes_apart}")
    assert calls is None or calls.total() == 4  # in each dtype of the prefix and of the own rows


V = 40


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-3, 5.0])
@pytest.mark.parametrize(("rows_per_block", "num_orders"), [(1, 7), (5, 1), (1000, 7)])
def test_large_and_small_divergences_in_blocks_from_references_in_any_order(
    rows_per_block: int, num_orders: int, scale: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causal_lm, "LOGITS_PER_BLOCK", rows_per_block * V)
    reference_TV = 4 * _random(4, V, seed=0, dtype=dtype)
    index_BT = torch.randint(0, 4, (num_orders, 3), generator=torch.Generator().manual_seed(2))
    logits_BTV = reference_TV[index_BT] + scale * _random(7, 3, V, seed=1, dtype=dtype)
    model = SimpleNamespace(vocabulary_size=V, logits=Mock(side_effect=torch.clone))
    targets_BT = torch.randint(0, V, (7, 3), generator=torch.Generator().manual_seed(3))
    losses_BT, divergences_BT = losses_and_divergences(
        model, logits_BTV, targets_BT, Predictions.of(reference_TV), index_BT
    )
    reference_BTV = reference_TV.double().log_softmax(-1)[index_BT]
    log_probs_BTV = logits_BTV.double().log_softmax(-1)
    expected_BT = (reference_BTV.exp() * (reference_BTV - log_probs_BTV)).sum(-1)
    # Float32 knows the logits to some 1e-7 of themselves; a difference of two losses would know no more.
    torch.testing.assert_close(divergences_BT.double(), expected_BT, rtol=1e-4, atol=1e-6)
    expected_BT = -log_probs_BTV.gather(-1, targets_BT[..., None])[..., 0]
    torch.testing.assert_close(losses_BT.double(), expected_BT, rtol=1e-7, atol=1e-6)
    losses_T = Predictions.of(logits_BTV[0]).losses(targets_BT[0].numpy())
    np.testing.assert_allclose(losses_T, expected_BT[0], rtol=1e-7, atol=1e-6)
    assert (divergences_BT >= 0).all()
    rows_at_a_time = [len(call.args[0]) for call in model.logits.call_args_list]
    assert max(rows_at_a_time) <= rows_per_block and sum(rows_at_a_time) == 21
