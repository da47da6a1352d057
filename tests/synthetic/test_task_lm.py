"""A task model behind the measuring interface: the model's own numbers, at the example's own IDs."""

import pytest
import torch
from test_task_model import FAMILIES, gapped_ids, task_model, tokens

from sparsity_length.models.interface import Predictions, causal_visibility
from sparsity_length.synthetic.models import TaskLM

NUM_TOKENS = 13


@pytest.fixture(
    params=[(name, scheme) for name in FAMILIES for scheme in ("predicted", "contiguous")], ids=str
)
def lm(request: pytest.FixtureRequest) -> TaskLM:
    return task_model(*request.param).at(gapped_ids(1)[0])


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
