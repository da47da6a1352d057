"""What each rule costs, counted, against the formulas that the report states, in token-forwards of one chunk.

Chunks of 24 tokens, 5 targets at 19 to 23, short contexts of 4: far contexts of 15 to 19 tokens, 85 in all,
and 23 tokens before the last target.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from hand_made_models import CountingLM
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import far_contexts, selected_positions, sparse_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import RULES, RuleCosts, studied_numbers
from pipeline.models.olmo import OLMoCausalLM

NEEDS_CAPTUM = pytest.mark.skipif(find_spec("captum") is None, reason="captum is not installed")
LENGTHS = ContextLengths(short_context_length=4, long_context_length=24, targets_per_chunk=5)
COSTS = RuleCosts(short_context_length=4, long_context_length=24, targets_per_chunk=5)


def _measured(
    make_olmo: Callable[..., OLMo],
    rules: list[str],
    max_k: int,
    **options: object,
) -> CountingLM:
    tokens = np.random.default_rng(1).integers(0, 48, (2, 24))
    model = CountingLM(OLMoCausalLM(make_olmo()))
    measurement = Measurement(model, LENGTHS, Batching(1))
    own = far_contexts(measurement, *tokens, **options)["own"]
    # These losses are measured anyway, but leaving one out begins with reading everything.
    _ = own.predictions, own.short, own.background
    model.token_forwards = 23 if any(rule.startswith("leave_one_out") for rule in rules) else 0
    for rule in rules:
        selected_positions(own, rule, max_k, seed=[0])
    return model


@pytest.mark.parametrize(
    ("rules", "max_k", "dearest"),
    [
        (["random", "nearest"], 3, "random"),
        (["leave_one_out"], 3, "leave_one_out"),
        (["leave_one_out_divergence"], 3, "leave_one_out_divergence"),
        (["leave_one_out", "leave_one_out_divergence", "leave_one_out"], 3, "leave_one_out"),
        (["add_one_in"], 3, "add_one_in"),
        (["greedy"], 1, "greedy"),
        (["greedy"], 3, "greedy"),
        (["greedy", "add_one_in"], 1, "add_one_in"),
        (["add_one_in_divergence", "add_one_in"], 3, "add_one_in"),
        (["greedy_divergence"], 3, "greedy_divergence"),
        (["banzhaf"], 3, "banzhaf"),
        (["banzhaf", "banzhaf_divergence"], 3, "banzhaf_divergence"),
        (["surrogate", "surrogate_divergence"], 3, "surrogate"),
        (["context_length_probing"], 3, "context_length_probing"),
        (["context_length_probing_divergence", "context_length_probing"], 3, "context_length_probing"),
        (["gradient_divergence"], 3, "gradient_divergence"),
        (["attention"], 3, "attention"),
        (["attention_rollout"], 3, "attention_rollout"),
        pytest.param(["input_x_gradient"], 3, "input_x_gradient", marks=NEEDS_CAPTUM),
        pytest.param(["integrated_gradients"], 3, "integrated_gradients", marks=NEEDS_CAPTUM),
        (["gradient"], 3, "gradient"),
    ],
)
def test_token_forwards(make_olmo: Callable[..., OLMo], rules: list[str], max_k: int, dearest: str) -> None:
    # Rules that run together cost what the dearest costs: they share what they need alike.
    model = _measured(make_olmo, rules, max_k)
    assert model.token_forwards == COSTS.token_forwards(dearest, max_k)
    per_target = {"gradient": 1, "gradient_divergence": 8, "input_x_gradient": 1, "integrated_gradients": 20}
    assert model.backward_passes == 5 * per_target.get(rules[0], 0)
    assert COSTS.backward_tokens_per_target(rules[0]) == 23 * per_target.get(rules[0], 0)


def test_rules_of_a_kind_share_their_passes_and_others_add_up(make_olmo: Callable[..., OLMo]) -> None:
    rules = ["leave_one_out", "leave_one_out_divergence", "attention", "nearest"]
    measured = _measured(make_olmo, rules, 3).token_forwards
    assert COSTS.token_forwards_together(rules, 3) == measured
    assert measured == COSTS.token_forwards("leave_one_out_divergence", 3) + COSTS.token_forwards(
        "attention", 3
    )
    # Greedy's first round is add_one_in's only, which its other rounds do not spare.
    assert COSTS.token_forwards_together(["add_one_in", "greedy"], 3) == COSTS.token_forwards("greedy", 3)


def test_a_substitution_runs_one_token_more_than_a_removal(make_olmo: Callable[..., OLMo]) -> None:
    model = _measured(make_olmo, ["leave_one_out"], 1, substitute_ids_L=np.zeros(24, dtype=np.int64))
    costs = replace(COSTS, intervention="substitute")
    assert model.token_forwards == costs.token_forwards("leave_one_out", 1)
    assert model.token_forwards == COSTS.one_removal_a_pass(substitute=True)


def test_the_formulas_by_hand() -> None:
    # With one removal a pass: all 23 tokens, and for removal i the 22 - i tokens after it, i = 0 ... 18.
    removals = 23 + (19 * 22 - 171)
    by_hand = {
        ("leave_one_out", 3): removals,
        ("leave_one_out_divergence", 1): removals,
        ("add_one_in", 3): 19 + 85 * 4,  # what is added comes first, and is looked up
        ("greedy", 1): 19 + 85 * 4,
        ("greedy", 3): 19 + 85 * 4 + (85 - 5) * (4 + 1) + (85 - 10) * (4 + 2),
        ("gradient", 3): 23,
        ("attention", 3): 23,
        ("nearest", 3): 0,
    }
    assert {key: COSTS.token_forwards(*key) for key in by_hand} == by_hand
    assert COSTS.one_removal_a_pass(substitute=True) == removals + 19
    assert COSTS.token_forwards_per_target("add_one_in", 1) == (19 + 340) / 5
    rules = ("gradient", "attention", "greedy")
    assert [COSTS.backward_tokens_per_target(rule) for rule in rules] == [23, 0, 0]


def test_every_rule_has_a_cost() -> None:
    assert all(COSTS.token_forwards(rule, 2) >= 0 for rule in RULES)
    assert all(COSTS.token_forwards_together([rule], 2) == COSTS.token_forwards(rule, 2) for rule in RULES)
    with pytest.raises(InputError, match="did you mean 'greedy'"):
        COSTS.token_forwards("gredy", 1)


@pytest.mark.parametrize(
    "rule", ["leave_one_out", "add_one_in_divergence", "banzhaf", "surrogate", "context_length_probing"]
)
@pytest.mark.parametrize("num_backgrounds", [1, 3])
def test_a_background_costs_passes_that_serve_all_targets(
    make_olmo: Callable[..., OLMo], rule: str, num_backgrounds: int
) -> None:
    backgrounds = np.random.default_rng(2).integers(0, 48, (num_backgrounds, 24))
    model = _measured(make_olmo, [rule], 2, background_ids_BL=backgrounds)
    costs = replace(COSTS, intervention="background", num_backgrounds=num_backgrounds)
    assert model.token_forwards == costs.token_forwards(rule, 2)


@pytest.mark.parametrize("num_backgrounds", [1, 2])
def test_sparse_contexts_in_a_background_are_read_from_their_first_token_on(
    make_olmo: Callable[..., OLMo], num_backgrounds: int
) -> None:
    tokens = np.random.default_rng(1).integers(0, 48, (2, 24))
    backgrounds = np.random.default_rng(2).integers(0, 48, (num_backgrounds, 24))
    costs = replace(COSTS, intervention="background", num_backgrounds=num_backgrounds)
    counted, whole = {}, 0
    for rule in ("nearest", "random"):
        model = CountingLM(OLMoCausalLM(make_olmo()))
        own = far_contexts(Measurement(model, LENGTHS, Batching(1)), *tokens, background_ids_BL=backgrounds)[
            "own"
        ]
        assert own.predictions
        before, positions_TK = model.token_forwards, selected_positions(own, rule, 15, seed=[0])
        numbers = studied_numbers(rule, [1, 3], 15)
        sparse_contexts(own, {rule: positions_TK}, {rule: numbers})
        counted[rule] = model.token_forwards - before
        firsts = [positions_TK[:, :k].min(1) for k in numbers]
        # The 19 far tokens of the last target once, then what stands between first token and target.
        assert counted[rule] == num_backgrounds * (
            19 + sum(int((range(19, 24) - first).sum()) for first in firsts)
        )
        whole += num_backgrounds * len(numbers) * 5 * 23
    assert counted["nearest"] == costs.sparse_contexts(["nearest"], [1, 3])
    assert counted["random"] == pytest.approx(costs.sparse_contexts(["random"], [1, 3]), rel=0.1)
    assert sum(counted.values()) < 0.75 * whole
