"""Task models: the stock models, schemes of attention by hand, generation with a cache, measured contexts."""

import math
from functools import partial

import pytest
import torch

from sparsity_length.models.attention import alibi_slopes
from sparsity_length.models.interface import Predictions, Prefix, Running, causal_visibility
from sparsity_length.synthetic.config import TaskConfig, TaskModelConfig
from sparsity_length.synthetic.evaluation import generate
from sparsity_length.synthetic.models import TaskLM
from sparsity_length.synthetic.schemes import ATTENTION_SCHEMES, Dape, Scheme, largest

V = 11
NUM_PROMPT = 7
NUM_RESPONSE = 6
FAMILIES = ("gpt_neox", "olmo")


def task_model(name: str, positions: str = "predicted") -> TaskLM:
    config = TaskConfig(
        "copy",
        positions,
        num_position_ids=40,
        model=TaskModelConfig(name, width=32, rotary_fraction=0.5),
    )
    model = TaskLM(config)
    with torch.no_grad():  # initial weights are so small that nothing would depend on anything
        for parameter in model._model.parameters():
            parameter.mul_(8.0)
    return model


def tokens(batch_size: int, num_rows: int) -> torch.Tensor:
    return torch.randint(V, (batch_size, num_rows), generator=torch.Generator().manual_seed(1))


def gapped_ids(batch_size: int) -> torch.Tensor:
    """Coupled-looking IDs, other ones in each sequence."""
    ids = torch.tensor([[3, 4, 5, 9, 10, 11, 0, 9, 10, 3, 4, 30, 31]])
    return ids + torch.arange(batch_size)[:, None]


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_the_stock_model(name: str) -> None:
    model = task_model(name, "contiguous")
    token_ids = tokens(3, 9)
    with torch.no_grad():
        found = model.logits(model._run(token_ids, torch.arange(9)[None], None, None)[0])
        stock = model._trunk._model
        if name != "olmo":
            stock.set_attn_implementation("sdpa")  # the library's, not ours
        torch.testing.assert_close(found, stock(token_ids).logits, rtol=0, atol=1e-5)
    names = set(model._model.state_dict())
    assert {name.startswith("trunk.model.") for name in names} == {True}, "as checkpoints have them"


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("positions", ["coupled", "predicted"])
def test_generation_with_a_cache_equals_a_full_forward_at_every_step(name: str, positions: str) -> None:
    model = task_model(name, positions)
    token_ids = tokens(5, NUM_PROMPT)
    ids = gapped_ids(5)
    generated_logits, generated_ids = generate(model, token_ids, ids)
    generated = generated_logits.argmax(-1)
    read = token_ids
    read_ids = ids[:, :NUM_PROMPT]
    for step in range(NUM_RESPONSE):
        with torch.no_grad():
            hidden, _ = model._run(read, read_ids, None, None)
        logits = model.logits(hidden[:, -1:])
        # Weights eight times as large magnify what rounding differs by.
        torch.testing.assert_close(generated_logits[:, step, None], logits, rtol=0, atol=1e-3)
        next_tokens = logits.argmax(-1)
        if positions == "predicted":
            next_ids = model.position_logits(hidden[:, -1:]).argmax(-1)
        else:
            next_ids = ids[:, NUM_PROMPT + step, None]
        assert torch.equal(generated[:, step, None], next_tokens)
        assert torch.equal(generated_ids[:, step, None], next_ids)
        read = torch.cat([read, next_tokens], 1)
        read_ids = torch.cat([read_ids, next_ids], 1)
    assert len(set(map(tuple, generated.tolist()))) > 1, "a constant would not show a wrong cache"


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


NUM_TOKENS = 13


@pytest.fixture(
    params=[
        *(partial(task_model, name, scheme) for name in FAMILIES for scheme in ("predicted", "contiguous")),
        *(partial(model_of, scheme) for scheme in ("nope", "alibi", "sparse")),
    ],
    ids=lambda make: "-".join(make.args),
)
def lm(request: pytest.FixtureRequest) -> TaskLM:
    return request.param().at(gapped_ids(1)[0])


def places(*chosen: int) -> torch.Tensor:
    return torch.tensor([chosen])


def test_losses_are_those_of_the_model_at_the_examples_ids(lm: TaskLM) -> None:
    token_ids = tokens(1, NUM_TOKENS)
    queries = places(4, 9)
    targets = token_ids[:, [5, 10]]
    plain = lm.at(torch.arange(40))
    hidden, _ = plain._run(token_ids, gapped_ids(1), None, None)
    logits = plain.logits(hidden)[:, [4, 9]]
    expected = torch.nn.functional.cross_entropy(logits[0], targets[0], reduction="none")
    states = lm.hidden_states(token_ids, torch.arange(NUM_TOKENS)[None], None, queries)
    losses = torch.as_tensor(Predictions.of(lm.logits(states[0])).losses(targets[0].numpy()))
    torch.testing.assert_close(losses, expected, rtol=0, atol=STATES_ATOL)


STATES_ATOL = 1e-4
"""Hidden states are of order 1; with AVX-512 and AVX2 they agree to 1e-5, with SSE alone to 4e-5."""


def test_leaving_a_token_out_is_masking_it(lm: TaskLM) -> None:
    token_ids = tokens(1, NUM_TOKENS)
    kept = [place for place in range(NUM_TOKENS) if place != 3]
    visible = causal_visibility(NUM_TOKENS, token_ids.device)
    visible[:, :, 3] = False
    visible[:, 3, 3] = True  # its own row, at which nobody looks, must see something
    masked = lm.hidden_states(token_ids, torch.arange(NUM_TOKENS)[None], visible, places(12))
    left_out = lm.hidden_states(token_ids[:, kept], places(*kept), None, places(11))
    torch.testing.assert_close(left_out, masked, rtol=0, atol=STATES_ATOL)


def test_a_shared_prefix_changes_nothing(lm: TaskLM) -> None:
    token_ids = tokens(1, NUM_TOKENS)
    positions = torch.arange(NUM_TOKENS)[None]
    whole, prefix = lm.read(token_ids, positions, None, None)
    rest = token_ids[:, 5:].expand(3, -1)
    states = lm.hidden_states(rest, positions[:, 5:], None, places(0, 7), prefix.first(5))
    torch.testing.assert_close(states, whole[:, [5, 12]].expand(3, -1, -1), rtol=0, atol=STATES_ATOL)
