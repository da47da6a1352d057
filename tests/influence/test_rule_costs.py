"""What each rule costs, counted against the formulas of its docstring, in token-forwards of one chunk.

Chunks of 24 tokens, 5 targets at 19 to 23, short contexts of 4: far contexts of 15 to 19 tokens, 85 in all,
and 23 tokens before the last target.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hand_made_models import CountingLM
from olmo.model import OLMo

from pipeline.influence.batching import Batching
from pipeline.influence.context_loss import ContextLengths
from pipeline.influence.rules import exhaustive
from pipeline.influence.selection import far_contexts, selected_positions
from pipeline.models.olmo import OLMoCausalLM

LENGTHS = ContextLengths(short_context_length=4, long_context_length=24, targets_per_chunk=5)
# With one removal a pass: all 23 tokens, and for removal i the 22 - i tokens after it, i = 0 ... 18.
REMOVALS = 23 + (19 * 22 - 171)
SUBSTITUTIONS = 23 + (19 * 23 - 171)
ADD_ONE_IN = 85 * (4 + 1)


def _measured(make_olmo: Callable[..., OLMo], rules: list[str], max_k: int, **options: object) -> CountingLM:
    tokens = np.random.default_rng(1).integers(0, 48, (2, 24))
    model = CountingLM(OLMoCausalLM(make_olmo()))
    (own, _) = far_contexts(model, *tokens, LENGTHS, Batching(1), **options)
    for rule in rules:
        if rule == "exhaustive":
            exhaustive(own, max_k)
        else:
            selected_positions(own, rule, LENGTHS, max_k, seed=[0])
    return model


@pytest.mark.parametrize(
    ("rules", "max_k", "token_forwards"),
    [
        (["random", "nearest"], 3, 0),
        (["leave_one_out"], 3, REMOVALS),
        (["divergence"], 3, REMOVALS),
        (["leave_one_out", "divergence", "leave_one_out"], 3, REMOVALS),
        (["add_one_in"], 3, ADD_ONE_IN),
        (["greedy"], 1, ADD_ONE_IN),
        (["greedy"], 3, ADD_ONE_IN + (85 - 5) * (4 + 2) + (85 - 10) * (4 + 3)),
        (["greedy", "add_one_in"], 1, ADD_ONE_IN),
        (["attention"], 3, 23),
        (["gradient"], 3, 23),
        (["exhaustive"], 1, ADD_ONE_IN),
        (["exhaustive"], 2, (105 + 120 + 136 + 153 + 171) * (4 + 2)),
    ],
)
def test_token_forwards(
    make_olmo: Callable[..., OLMo], rules: list[str], max_k: int, token_forwards: int
) -> None:
    model = _measured(make_olmo, rules, max_k, with_divergence="divergence" in rules)
    assert model.token_forwards == token_forwards
    assert model.backward_passes == (5 if rules == ["gradient"] else 0)


def test_a_substitution_runs_one_token_more_than_a_removal(make_olmo: Callable[..., OLMo]) -> None:
    model = _measured(make_olmo, ["leave_one_out"], 1, substitute_ids_L=np.zeros(24, dtype=np.int64))
    assert model.token_forwards == SUBSTITUTIONS == REMOVALS + 19
