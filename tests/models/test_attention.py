"""Attention of our own equals attention written out; divergences hold to float64's digits, in any blocks."""

import inspect
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from sparsity_length.models import attention as log_sum_exp_attention
from sparsity_length.models import interface as causal_lm
from sparsity_length.models.attention import alibi_slopes, attend, attention_and_log_sum_exp
from sparsity_length.models.interface import Predictions, Prefix, Running, losses_and_divergences

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


Parts = tuple[torch.Tensor, ...]


def _behind_a_prefix(
    num_past: int, num_groups: int, dtype: torch.dtype
) -> tuple[torch.Tensor, Parts, Parts, Parts]:
    """Queries; keys and values of their own rows, of a prefix, and of both, as each head sees them."""
    query = _random(B, H, S, E, seed=0, dtype=dtype)
    own = tuple(_random(B, num_groups, S, E, seed=seed, dtype=dtype) for seed in (1, 2))
    past = tuple(_random(1, num_groups, num_past, E, seed=seed, dtype=dtype) for seed in (3, 4))
    pairs = zip(past, own, strict=True)
    both = (torch.cat((of_past.expand(B, -1, -1, -1), of_own), dim=2) for of_past, of_own in pairs)
    return query, own, past, tuple(part.repeat_interleave(H // num_groups, 1) for part in both)


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
        query, own, past, (keys, values) = _behind_a_prefix(num_past, num_groups, dtype)
        query = query[:, :, rows]
        given = None if mask == "none" else visible
        if mask == "added":
            given = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -math.inf)
        running = Running(Prefix((past,), torch.zeros(1, num_past)), torch.empty(0), None, None, None)
        expected = _scores(query, keys, seen).softmax(-1) @ values.double()
        for goes_apart in (True, False):  # derivatives need the one pass over both
            with torch.set_grad_enabled(not goes_apart):
                found = attend(running, 0, query, *own, given).double()
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
        query, own, past, (keys, values) = _behind_a_prefix(num_past, num_groups, dtype)
        biased = _scores(query, keys, seen) - slopes[:, None, None] * distances[:, None]
        expected = biased.softmax(-1) @ values.double()
        # The rows of the prefix are read first, so that it is kept as later rows find it.
        read: list[tuple[torch.Tensor, torch.Tensor]] = []
        nothing = Prefix((), past_ids[:, :0])
        before = Running(nothing, past_ids, None, None, read, slopes_H=slopes)
        attend(before, 0, query[:1, :, :num_past], *past, None)
        running = Running(Prefix(tuple(read), past_ids), ids, None, None, None, slopes_H=slopes)
        for goes_apart in (True, False):
            with torch.set_grad_enabled(not goes_apart):
                found = attend(running, 0, query, *own, None).double()
            torch.testing.assert_close(found, expected, rtol=0, atol=max(tolerance, 3e-5))


V = 40


class LogitsAreStates:
    """A model whose hidden states are the logits that it is given; it notes how many it makes at a time."""

    vocabulary_size = V

    def __init__(self, logits_BTV: torch.Tensor) -> None:
        self._logits_BTV = logits_BTV
        self.rows_at_a_time = []

    def hidden_states(self, *_: object) -> torch.Tensor:
        return self._logits_BTV

    def logits(self, hidden_NV: torch.Tensor) -> torch.Tensor:
        self.rows_at_a_time.append(len(hidden_NV))
        return hidden_NV.clone()


def found(model: LogitsAreStates, reference: Predictions, index_BT: torch.Tensor) -> list[np.ndarray]:
    rows = torch.zeros(model._logits_BTV.shape[:2], dtype=torch.int64)
    inputs = model.hidden_states(), torch.full_like(rows, 3)
    return [part.numpy() for part in losses_and_divergences(model, *inputs, reference, index_BT)]


def exact(reference_V: torch.Tensor, logits_V: torch.Tensor) -> float:
    reference, prediction = (logits.double().log_softmax(-1) for logits in (reference_V, logits_V))
    return float((reference.exp() * (reference - prediction)).sum())


@pytest.mark.parametrize("scale", [1e-3, 5.0])
def test_large_and_small_divergences(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    reference_TV = 4 * torch.randn(6, V, generator=generator)
    logits_BTV = reference_TV + scale * torch.randn(3, 6, V, generator=generator)
    losses_BT, divergences_BT = found(
        LogitsAreStates(logits_BTV), Predictions.of(reference_TV), torch.arange(6)[None]
    )
    expected = [[exact(*pair) for pair in zip(reference_TV, row, strict=True)] for row in logits_BTV]
    # Float32 knows the logits to some 1e-7 of themselves; a difference of two losses would know no more.
    np.testing.assert_allclose(divergences_BT, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(losses_BT, -logits_BTV.log_softmax(-1)[..., 3], atol=1e-5)
    assert (divergences_BT >= 0).all()


def test_logits_of_sixteen_bits_lose_no_more_than_their_own_digits() -> None:
    logits_TV = (4 * torch.randn(6, 1000, generator=torch.Generator().manual_seed(1))).bfloat16()
    ids_T = np.arange(6)
    expected_T = -logits_TV.double().log_softmax(-1)[ids_T, ids_T]
    np.testing.assert_allclose(Predictions.of(logits_TV).losses(ids_T), expected_T, rtol=1e-6)
    rows = torch.arange(6)[None]
    model = LogitsAreStates(logits_TV[None])
    of_blocks = losses_and_divergences(model, logits_TV[None], rows, Predictions.of(logits_TV), rows)
    np.testing.assert_allclose(of_blocks[0][0], expected_T, rtol=1e-6)
    assert of_blocks[1].abs().max() < 1e-6


@pytest.mark.parametrize("rows_per_block", [1, 5, 1000])
def test_blocks_and_any_order_of_references(rows_per_block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal_lm, "LOGITS_PER_BLOCK", rows_per_block * V)
    generator = torch.Generator().manual_seed(2)
    reference_TV, logits_BTV = (torch.randn(*size, V, generator=generator) for size in ((4,), (7, 3)))
    index_BT = torch.randint(0, 4, (7, 3), generator=generator)
    model = LogitsAreStates(logits_BTV)
    losses_BT, divergences_BT = found(model, Predictions.of(reference_TV), index_BT)
    pairs = zip(index_BT.flatten(), logits_BTV.flatten(0, 1), strict=True)
    expected = [exact(reference_TV[index], row) for index, row in pairs]
    np.testing.assert_allclose(divergences_BT.ravel(), expected, atol=1e-6)
    np.testing.assert_allclose(losses_BT, -logits_BTV.log_softmax(-1)[..., 3], atol=1e-6)
    assert max(model.rows_at_a_time) <= rows_per_block and sum(model.rows_at_a_time) == 21


NAMES = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention")


def write_out_cuda_kernels(patch: pytest.MonkeyPatch) -> Counter[str]:
    """Have attention on the CPU call CUDA's kernels, written out; returns how often each was called."""
    calls: Counter[str] = Counter()
    for name in NAMES:
        patch.setattr(torch.ops.aten, name, _WrittenOut(name, calls))
    patch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", _as_on_cuda)
    patch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    return calls


def _as_on_cuda(
    *qkv: torch.Tensor, is_causal: bool, attn_mask: torch.Tensor | None, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    return log_sum_exp_attention._on_cuda(*qkv, attn_mask, is_causal, scale)


class _WrittenOut:
    """Takes the arguments of the real kernel's own schema, and returns as many results."""

    def __init__(self, name: str, calls: Counter[str]) -> None:
        self._name = name
        self._calls = calls
        schema = getattr(torch.ops.aten, name).default._schema
        self._num_results = len(schema.returns)
        self._signature = inspect.Signature(
            [
                inspect.Parameter(
                    argument.name,
                    inspect.Parameter.KEYWORD_ONLY
                    if argument.kwarg_only
                    else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=argument.default_value if argument.has_default_value() else inspect._empty,
                )
                for argument in schema.arguments
            ]
        )

    def __call__(self, *arguments: Any, **keywords: Any) -> tuple[torch.Tensor | None, ...]:
        self._calls[self._name] += 1
        bound = self._signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        given = bound.arguments
        assert given["dropout_p"] == 0
        qkv = [given[name] for name in ("query", "key", "value")]
        for tensor in qkv:
            assert tensor.stride(-1) == 1 and tensor.shape[-1] * tensor.itemsize % 16 == 0
            assert tensor.shape[:2] == qkv[0].shape[:2] and tensor.dtype == qkv[0].dtype
        if self._name == NAMES[0]:
            assert qkv[0].dtype in (torch.bfloat16, torch.float16)
        else:
            assert given["compute_log_sumexp"]
            _check_mask(given["attn_bias"], *qkv[:2])
        results = _attention(*qkv, given.get("attn_bias"), given["is_causal"], given["scale"])
        if self._name == NAMES[1]:
            results = results[0], torch.nn.functional.pad(results[1], (0, -results[1].shape[-1] % 32))
        return *results, *[None] * (self._num_results - 2)


def _check_mask(added: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> None:
    """Check what the efficient kernel demands: its dtype, every head, rows at multiples of 8 values."""
    if added is not None:
        assert added.dtype == query.dtype
        assert added.shape == (*query.shape[:3], key.shape[2])
        assert added.stride(-1) == 1 and all(stride % 8 == 0 for stride in added.stride()[:3])


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    added: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and log-sum-exps, [B, S, H, E] in memory as CUDA's have it."""
    assert not (is_causal and added is not None)
    scores = (query.double() @ key.double().transpose(-1, -2)) * (scale or 1 / math.sqrt(query.shape[-1]))
    if added is not None:
        scores = scores + added.double()
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    attended = (scores.softmax(-1) @ value.double()).to(query.dtype)
    return attended.transpose(1, 2).contiguous().transpose(1, 2), scores.logsumexp(-1).float()
