"""Attention of our own equals attention written out; divergences hold to float64's digits, in any blocks."""

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from sparsity_length.models.attention import _on_cuda, attend
from sparsity_length.models.interface import Predictions, Prefix, Running, losses_and_divergences

B = 2
S = 5
H = 4
E = 8
DTYPES = {torch.float32: 1e-6, torch.bfloat16: 2e-2}  # dtype -> tolerance


def _random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def written_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, added: torch.Tensor, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and log-sum-exps, float64; numbers added to the scores say what is seen."""
    scores = (query.double() @ key.double().transpose(-1, -2)) * (scale or E**-0.5) + added.double()
    return scores.softmax(-1) @ value.double(), scores.logsumexp(-1)


def _as_cuda(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    added: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What both kernels return first, [B, S, H, E] in memory, if they are given what they demand."""
    for tensor in (query, key, value):
        assert tensor.stride(-1) == 1 and tensor.shape[-1] * tensor.itemsize % 16 == 0
        assert tensor.shape[:2] == query.shape[:2] and tensor.dtype == query.dtype
    if added is None:
        added = torch.ones(query.shape[2], key.shape[2]).tril(0 if is_causal else key.shape[2]).log()
    attended, sums = written_out(query, key, value, added, scale)
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
        first = _as_cuda(query, key, value, None, is_causal, scale)
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
        attended, sums = _as_cuda(query, key, value, added, is_causal, scale)
        return attended, torch.nn.functional.pad(sums, (0, -sums.shape[-1] % 32)), nothing, nothing

    def as_on_cuda(
        *qkv: torch.Tensor, is_causal: bool, attn_mask: torch.Tensor | None, scale: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return _on_cuda(*qkv, attn_mask, is_causal, scale)

    if request.param == "of the CPU":
        yield None
        return
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", as_on_cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with torch.library._scoped_library("aten", "IMPL", "CPU") as library:
        library.impl("_scaled_dot_product_flash_attention", flash)
        library.impl("_scaled_dot_product_efficient_attention", efficient)
        yield counted


# Far apart, repeated, and beyond 256; a row of each sequence has an ID of its own.
PAST_IDS = torch.tensor([[0, 0, 299, 300]])
OWN_IDS = torch.tensor([[301, 302, 302, 700, 701], [301, 303, 310, 311, 900]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_groups", [4, 2, 1])
@pytest.mark.parametrize("mask", ["none", "bool", "added", "of each sequence", "fewer queries", "alibi"])
def test_attention_to_a_shared_prefix(
    calls: Counter[str] | None, mask: str, num_groups: int, dtype: torch.dtype
) -> None:
    rows = [1, 4] if mask == "fewer queries" else list(range(S))
    added = torch.ones(B if mask == "of each sequence" else 1, 1, S, S, dtype=dtype).tril().log()
    if mask in ("bool", "added", "of each sequence"):
        added[0, :, 3:, 1] = -torch.inf
    added = added[:, :, rows]
    given = {"none": None, "alibi": None, "added": added}.get(mask, added == 0)
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256]) if mask == "alibi" else None
    scale = 0.2 if mask == "bool" else None
    query = _random(B, H, S, E, seed=0, dtype=dtype)
    own = [_random(B, num_groups, S, E, seed=seed, dtype=dtype) for seed in (1, 2)]
    past = [_random(1, num_groups, 4, E, seed=seed, dtype=dtype) for seed in (3, 4)]
    # The rows of the prefix are read first, so that it is kept as later rows find it.
    read: list[tuple[torch.Tensor, torch.Tensor]] = []
    before = Running(Prefix((), PAST_IDS[:, :0]), PAST_IDS, None, None, read, slopes_H=slopes)
    attend(before, 0, query[:1, :, :4], *past, None)
    ids = torch.cat((PAST_IDS.expand(B, -1), OWN_IDS), dim=1)
    running = Running(Prefix(tuple(read), PAST_IDS), ids, None, None, None, slopes_H=slopes)
    keys_and_values = [
        torch.cat((of_past.expand(B, -1, -1, -1), of_own), dim=2).repeat_interleave(H // num_groups, 1)
        for of_past, of_own in zip(past, own, strict=True)
    ]
    biases = torch.nn.functional.pad(added, (4, 0))
    if slopes is not None:
        biases = biases - slopes[:, None, None] * (OWN_IDS[:, :, None] - ids[:, None])[:, None]
    expected, _ = written_out(query[:, :, rows], *keys_and_values, biases, scale)
    atol = DTYPES[dtype] if slopes is None else max(DTYPES[dtype], 3e-5)
    for goes_apart in (True, False):  # derivatives need the one pass over both
        with torch.set_grad_enabled(not goes_apart):
            found = attend(running, 0, query[:, :, rows], *own, given, scale).double()
        torch.testing.assert_close(found, expected, rtol=0, atol=atol, msg=str(goes_apart))
    # Of the prefix and of the own rows, these with a mask.
    num_flash = (1 if given is not None else 2) * (dtype == torch.bfloat16)
    assert calls is None or (calls["flash"], calls["efficient"]) == (num_flash, 2 - num_flash)


V = 40


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-3, 5.0])
@pytest.mark.parametrize(("rows_per_block", "num_orders"), [(1, 7), (5, 1), (1000, 7)])
def test_large_and_small_divergences_in_blocks_from_references_in_any_order(
    rows_per_block: int, num_orders: int, scale: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsity_length.models.interface.LOGITS_PER_BLOCK", rows_per_block * V)
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
    log_probs_BT = log_probs_BTV.gather(-1, targets_BT[..., None])[..., 0]
    torch.testing.assert_close(losses_BT.double(), -log_probs_BT, rtol=1e-7, atol=1e-6)
    assert (divergences_BT >= 0).all()
    rows_at_a_time = [len(call.args[0]) for call in model.logits.call_args_list]
    assert max(rows_at_a_time) <= rows_per_block and sum(rows_at_a_time) == 21
