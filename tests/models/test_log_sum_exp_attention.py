"""Attention with its log-sum-exps: each kernel as it is called equals attention written out."""

import math
from collections.abc import Callable

import pytest
import torch
from cuda_kernels import NAMES, write_out_cuda_kernels
from olmo.model import OLMo

from pipeline.models import attention as log_sum_exp_attention
from pipeline.models.attention import attention_and_log_sum_exp, tells_log_sum_exp
from pipeline.models.olmo import OLMoCausalLM

B, S, K, H, E = 2, 5, 7, 3, 8


def _random(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("kernels", ["of the CPU", "of CUDA"])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added", "of each sequence"])
@pytest.mark.parametrize("scale", [None, 0.2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_against_attention_written_out(
    kernels: str,
    mask: str,
    scale: float | None,
    dtype: torch.dtype,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = write_out_cuda_kernels(monkeypatch) if kernels == "of CUDA" else None
    query, key, value = (
        _random(B, H, size, E, seed=seed, dtype=dtype) for seed, size in enumerate((S, K, K))
    )
    visible = torch.rand(B, 1, S, K, generator=torch.Generator().manual_seed(9)) < 0.6
    visible[..., 0] = True
    given = {"bool": visible[:1], "added": torch.zeros(1, 1, S, K, dtype=dtype), "of each sequence": visible}
    if mask == "added":
        given["added"].masked_fill_(~visible[:1], -math.inf)
    seen = torch.ones(S, K, dtype=torch.bool)
    seen = {"none": seen, "causal": seen.tril(), "of each sequence": visible}.get(mask, visible[:1])
    attended, log_sum_exp = attention_and_log_sum_exp(
        query, key, value, given.get(mask), is_causal=mask == "causal", scale=scale
    )
    scores = (query.double() @ key.double().transpose(-1, -2)) * (scale or 1 / math.sqrt(E))
    scores = scores.masked_fill(~seen, -math.inf)
    expected = scores.softmax(-1) @ value.double()
    torch.testing.assert_close(attended.double(), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(log_sum_exp.double(), scores.logsumexp(-1), rtol=0, atol=max(tolerance, 2e-6))
    if calls is not None:
        is_flash = mask in ("none", "causal") and dtype == torch.bfloat16
        assert calls == {NAMES[0] if is_flash else NAMES[1]: 1}


def test_kinds_of_heads_without_a_kernel() -> None:
    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert tells_log_sum_exp(cuda, torch.float32, 64, 64)
    assert tells_log_sum_exp(cuda, torch.float32, 4, 4)
    assert tells_log_sum_exp(cpu, torch.float32, 5, 5)
    assert not tells_log_sum_exp(cuda, torch.bfloat16, 4, 4)  # 8 bytes; the kernels read 16 at a time
    assert not tells_log_sum_exp(cuda, torch.float32, 64, 32)
    assert not tells_log_sum_exp(torch.device("mps"), torch.float32, 64, 64)


def test_flash_attention_is_asked_for_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = write_out_cuda_kernels(monkeypatch)
    monkeypatch.setattr(log_sum_exp_attention, "_has_flash", lambda device: False)
    rows = _random(B, H, S, E, seed=0, dtype=torch.float16)
    attention_and_log_sum_exp(rows, rows, rows, None, is_causal=True)
    assert calls == {NAMES[1]: 1}
    wide = _random(B, H, S, 264, seed=0, dtype=torch.float16)
    monkeypatch.setattr(log_sum_exp_attention, "_has_flash", lambda device: True)
    attention_and_log_sum_exp(wide, wide, wide, None, is_causal=True)
    assert calls == {NAMES[1]: 2}


@pytest.mark.parametrize("fields", [{}, {"n_kv_heads": 2}])
def test_a_model_that_reads_on_from_a_prefix_by_cudas_kernels(
    fields: dict[str, int], make_olmo: Callable[..., OLMo], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(3)
    token_ids_BS = torch.randint(0, 48, (3, 20), generator=generator)
    token_ids_BS[:, :8] = token_ids_BS[0, :8]
    position_ids_1S, last_1T = torch.arange(20)[None], torch.tensor([[9, 11]])
    visible_1SS = torch.ones(1, 12, 12, dtype=torch.bool).tril()
    visible_1SS[:, 5:, 3] = False
    wholly_visible = torch.ones(1, 20, 20, dtype=torch.bool).tril()
    wholly_visible[:, 13:, 11] = False
    lm = OLMoCausalLM(make_olmo(seed=1, **fields))
    expected = lm.hidden_states(token_ids_BS, position_ids_1S, wholly_visible, last_1T + 8)
    calls = write_out_cuda_kernels(monkeypatch)
    _, prefix = lm.read(token_ids_BS[:1, :8], position_ids_1S[:, :8], None, None)
    assert not calls  # nothing to be merged
    found = lm.hidden_states(token_ids_BS[:, 8:], position_ids_1S[:, 8:], visible_1SS, last_1T, prefix)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert calls == {NAMES[1]: 4}  # two layers, prefix and own rows
