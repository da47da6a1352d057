"""Divergences of whole distributions: small to float64's digits, blocks in any order and no more."""

import numpy as np
import pytest
import torch

from sparsity_length.models import interface as causal_lm
from sparsity_length.models.interface import Predictions, losses_and_divergences

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
