"""Schemes of attention beside RoPE: their scores by hand, cached and full passes, and what is measured."""

import math
from functools import partial

import pytest
import torch
from test_task_model import gapped_ids, tokens

from sparsity_length.models.attention import alibi_slopes
from sparsity_length.models.interface import Prefix, Running, causal_visibility
from sparsity_length.synthetic.config import TaskConfig, TaskModelConfig
from sparsity_length.synthetic.evaluation import generate
from sparsity_length.synthetic.models import TaskLM
from sparsity_length.synthetic.schemes import ATTENTION_SCHEMES, Dape, Scheme, largest

ROWS = torch.arange(13)[None]


def model_of(positions: str) -> TaskLM:
    num_keys = 3 if positions == "sparse" else None
    model = TaskLM(
        TaskConfig(
            "copy",
            positions,
            num_position_ids=40,
            model=TaskModelConfig(width=32, num_keys=num_keys),
        )
    )
    with torch.no_grad():
        for parameter in model._model.parameters():
            parameter.mul_(8.0 if positions != "dape_alibi" else 4.0)
    return model


def states(model: TaskLM, token_ids: torch.Tensor, ids: torch.Tensor = ROWS) -> torch.Tensor:
    return model.hidden_states(token_ids, ids, None, None)


@pytest.mark.parametrize("positions", ATTENTION_SCHEMES)
def test_generation_with_a_cache_equals_a_full_forward(positions: str) -> None:
    model = model_of(positions)
    prompts = tokens(5, 7)
    logits, _ = generate(model, prompts, ROWS.expand(5, -1))
    read = torch.cat((prompts, logits.argmax(-1)), dim=1)
    whole = model.logits(states(model, read))[:, 6:-1]
    torch.testing.assert_close(logits, whole, rtol=0, atol=1e-3)
    assert len(set(map(tuple, logits.argmax(-1).tolist()))) > 1


def test_what_a_scheme_knows_of_positions() -> None:
    token_ids = tokens(1, 13)
    swapped = token_ids[:, [1, 0, *range(2, 13)]]
    for positions, is_blind in (
        ("nope", True),
        ("alibi", False),
        ("dape_nope", True),
        ("dape_alibi", False),
        ("sparse", False),
    ):
        model = model_of(positions)
        plain = states(model, token_ids)
        moved = states(model, token_ids, ROWS + 20)
        stretched = states(model, token_ids, 2 * ROWS)
        assert torch.allclose(plain, moved, atol=1e-3), positions
        assert torch.allclose(plain, stretched, atol=1e-3) == is_blind, positions
        assert not torch.allclose(plain[:, -1], states(model, swapped)[:, -1], atol=1e-3), (
            "the mask tells order"
        )


@pytest.mark.parametrize("positions", ["nope", "alibi", "sparse"])
def test_leaving_a_token_out_is_masking_it_at_the_examples_ids(positions: str) -> None:
    model = model_of(positions).at(gapped_ids(1)[0])
    token_ids = tokens(1, 13)
    kept = [place for place in range(13) if place != 3]
    visible = causal_visibility(13, token_ids.device)
    visible[:, :, 3] = False
    visible[:, 3, 3] = True  # its own row must see something
    masked = model.hidden_states(token_ids, ROWS, visible, None)[:, kept]
    left_out = model.hidden_states(token_ids[:, kept], ROWS[:, kept], None, None)
    torch.testing.assert_close(left_out, masked, rtol=0, atol=1e-4)
    prefix = model.read(token_ids[:, :5], ROWS[:, :5], None, None)[1]
    behind = model.hidden_states(token_ids[:, 5:], ROWS[:, 5:], None, None, prefix)
    torch.testing.assert_close(behind, states(model, token_ids)[:, 5:], rtol=0, atol=1e-4)


def scores_of(scheme: Scheme, scores: list[list[list[float]]]) -> torch.Tensor:
    scores_1HSK = torch.tensor([scores], dtype=torch.float32)
    num_rows = scores_1HSK.shape[-1]
    visible = torch.ones(1, 1, num_rows, num_rows, dtype=torch.bool).tril()
    running = Running(Prefix((), torch.zeros(1, 0)), torch.tensor([[0, 1, 5][:num_rows]]), None, None, None)
    change = scheme(running, running.position_ids_BK).change
    assert change is not None
    changed = change(0, scores_1HSK, visible, scores_1HSK, scores_1HSK)
    return changed.masked_fill(~visible, 0)[0]


def test_the_largest_scores_by_hand() -> None:
    # The row's best two of three; rows that see fewer keep them all, and the future is no candidate.
    found = scores_of(partial(largest, 2), [[[1, 9, 9], [2, 3, 9], [5, 4, 6]]])
    assert found.tolist() == [[[1, 0, 0], [2, 3, 0], [5, -math.inf, 6]]]


def test_dape_by_hand() -> None:
    dape = Dape(2, 1, has_alibi=True)
    first, _, last = dape.of_layers[0]
    with torch.no_grad():
        for parameter in dape.parameters():
            parameter.zero_()
        # Channel 0 adds score of head 0 two keys before, 10 x score of head 1, 100 x bias of head 1.
        first.weight[0, 0, 0, 0] = 1
        first.weight[0, 1, 0, 2] = 10
        first.weight[0, 3, 0, 2] = 100
        last.weight[0, 0] = 1
        last.weight[1, 0] = 2
    scores = [[[1, 7, 7], [2, 3, 7], [4, 5, 6]], [[1, 7, 7], [1, 1, 7], [1, 2, 3]]]
    found = scores_of(dape, scores)
    # Slopes of two heads 1/16, 1/256; IDs 0 1 5, so that the last row's distances are 5, 4, 0.
    assert alibi_slopes(2).tolist() == [1 / 16, 1 / 256]
    near = [5 / 256, 4 / 256, 0]
    mixed = [10 - 100 * near[0], 20 - 100 * near[1], 30 + 4]
    leaky = [max(value, value / 100) for value in mixed]
    expected = torch.tensor(
        [
            [4 - 5 / 16 + leaky[0], 5 - 4 / 16 + leaky[1], 6 + leaky[2]],
            [1 - near[0] + 2 * leaky[0], 2 - near[1] + 2 * leaky[1], 3 + 2 * leaky[2]],
        ]
    )
    torch.testing.assert_close(found[:, 2], expected)
