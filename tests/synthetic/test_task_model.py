"""Task models of both families: the stock models, and generation with a cache."""

import pytest
import torch

from sparsity_length.synthetic.config import TaskConfig, TaskModelConfig
from sparsity_length.synthetic.evaluation import generate
from sparsity_length.synthetic.models import TaskLM

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
