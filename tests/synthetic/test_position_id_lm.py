"""The head of position IDs behind the measuring interface: the model's own numbers, token by token."""

from typing import Any

import numpy as np
import pytest
import torch
from test_task_model import FAMILIES, V, task_model

from pipeline.measuring.far_context import FarContext
from pipeline.measuring.flags import ContextLengths
from pipeline.synthetic.dependencies import distant_context
from pipeline.synthetic.models import PositionIdLM, TaskModel

NUM_PROMPT = 6
TOKENS_L = np.array([5, 1, 2, 6, 7, 8, 3, 9, 9])
IDS_L = torch.tensor([10, 11, 12, 13, 14, 15, 20, 12, 13])
LENGTHS = ContextLengths(short_context_length=2, long_context_length=9, targets_per_chunk=3)
ATOL = 1e-4


def searched(model: TaskModel, ablation: str, swaps: np.ndarray = TOKENS_L[None]) -> FarContext:
    lm = PositionIdLM(model, V, IDS_L, TOKENS_L, NUM_PROMPT)
    return distant_context(lm, lm.codes_L, lm.codes_of(swaps), LENGTHS, ablation)


def logits_by_hand(
    model: TaskModel, target: int, left_out: int | None = None, tokens: Any = TOKENS_L
) -> torch.Tensor:
    """Loss of the ID of place `target`, reading the model's own passes over the tokens before it."""
    kept = [place for place in range(target) if place != left_out]
    hidden, _ = model(torch.tensor(tokens[kept])[None], IDS_L[kept][None])
    return model.position_logits(hidden[0, -1])


def loss(logits: torch.Tensor, target: int) -> float:
    return float(torch.nn.functional.cross_entropy(logits, IDS_L[target]))


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_leaving_out_equals_brute_force(name: str) -> None:
    model = task_model(name)
    context = searched(model, "mask")
    for index, target in enumerate(LENGTHS.targets_T.tolist()):
        whole = logits_by_hand(model, target)
        assert context.long_losses_T[index] == pytest.approx(loss(whole, target), abs=ATOL)
        for place in range(target - 2):
            without = logits_by_hand(model, target, left_out=place)
            influence = loss(without, target) - loss(whole, target)
            assert context.influence_TF[index, place] == pytest.approx(influence, abs=ATOL)
            log_p = whole.log_softmax(-1)
            log_q = without.log_softmax(-1)
            divergence = float((log_p.exp() * (log_p - log_q)).sum())
            assert context.divergence_TF[index, place] == pytest.approx(divergence, abs=ATOL)
    assert np.nanmax(context.divergence_TF) > 0.1
