"""What each rule costs, counted, against the formulas that the report states, in token-forwards of one chunk.

Chunks of 24 tokens, 5 targets at 19 to 23, short contexts of 4: far contexts of 15 to 19 tokens, 85 in all,
and 23 tokens before the last target.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hand_made_models import CountingLM
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import far_contexts, sparse_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import (
    BACKGROUND,
    DEFAULT_RULES,
    RULES,
    RuleCosts,
    selected_positions,
    studied_numbers,
)
from pipeline.measuring.sparsity import Request, measure_chunk, planned_tokens
from pipeline.measuring.stage import LoadedModel
from pipeline.models.olmo import OLMoCausalLM
from pipeline.text.chunks import Chunk

LENGTHS = ContextLengths(short_context_length=4, long_context_length=24, targets_per_chunk=5)
COSTS = RuleCosts(short_context_length=4, long_context_length=24, targets_per_chunk=5)
CHUNKS = np.random.default_rng(1).integers(0, 48, (2, 24))
BACKWARD = {"gradient": 1, "gradient_divergence": 8}
"""Backward passes a target."""


def _counted(make_olmo: Callable[..., OLMo], rules: list[str], k: int, **options: object) -> CountingLM:
    model = CountingLM(OLMoCausalLM(make_olmo()))
    own = far_contexts(Measurement(model, LENGTHS, Batching(1)), *CHUNKS, **options)["own"]
    # These losses are measured anyway, but leaving one out begins with reading everything.
    _ = own.predictions, own.short, own.background
    model.token_forwards = 23 if any(rule.startswith("leave_one_out") for rule in rules) else 0
    for rule in rules:
        selected_positions(own, rule, k, seed=[0])
    return model


def test_every_rule_costs_what_its_formula_says(make_olmo: Callable[..., OLMo]) -> None:
    for name in RULES:
        counted = _counted(make_olmo, [name], 3)
        assert counted.token_forwards == COSTS.token_forwards(name, 3), name
        assert COSTS.token_forwards_together([name], 3) == COSTS.token_forwards(name, 3), name
        assert counted.backward_passes == 5 * BACKWARD.get(name, 0), name
        assert COSTS.backward_tokens_per_target(name) == 23 * BACKWARD.get(name, 0), name


def test_rules_of_a_kind_share_their_passes_and_others_add_up(make_olmo: Callable[..., OLMo]) -> None:
    for rules in (
        ["leave_one_out", "leave_one_out_divergence", "attention", "nearest"],
        ["add_one_in_divergence", "greedy", "add_one_in"],
        ["greedy", "greedy_divergence"],
    ):
        assert COSTS.token_forwards_together(rules, 3) == _counted(make_olmo, rules, 3).token_forwards, rules


def test_the_formulas_by_hand(make_olmo: Callable[..., OLMo]) -> None:
    # With one removal a pass: all 23 tokens, and for removal i the 22 - i tokens after it, i = 0 ... 18.
    removals = 23 + (19 * 22 - 171)
    by_hand = {
        ("leave_one_out", 3): removals,
        ("add_one_in", 3): 19 + 85 * 4,  # what is added comes first, and is looked up
        ("greedy", 3): 19 + 85 * 4 + (85 - 5) * (4 + 1) + (85 - 10) * (4 + 2),
        ("gradient", 3): 23,
        ("nearest", 3): 0,
    }
    assert {key: COSTS.token_forwards(*key) for key in by_hand} == by_hand
    assert COSTS.token_forwards_per_target("add_one_in", 1) == (19 + 340) / 5


@pytest.mark.parametrize("number", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_background_serves_all_targets(make_olmo: Callable[..., OLMo], number: int) -> None:
    backgrounds = np.random.default_rng(2).integers(0, 48, (number, 24))
    costs = replace(COSTS, intervention=BACKGROUND, num_backgrounds=number)
    for rule in ("leave_one_out", "add_one_in_divergence"):
        counted = _counted(make_olmo, [rule], 2, background_ids_BL=backgrounds).token_forwards
        assert counted == costs.token_forwards(rule, 2), rule
    # Sparse contexts are read from their first token on.
    whole = counted = 0
    for rule, tolerance in (("nearest", 0), ("random", 0.1)):
        model = CountingLM(OLMoCausalLM(make_olmo()))
        measurement = Measurement(model, LENGTHS, Batching(1))
        own = far_contexts(measurement, *CHUNKS, background_ids_BL=backgrounds)["own"]
        assert own.predictions
        before, positions_TK = model.token_forwards, selected_positions(own, rule, 15, seed=[0])
        numbers = studied_numbers(rule, [1, 3], 15)
        sparse_contexts(own, {rule: positions_TK}, {rule: numbers})
        found = model.token_forwards - before
        firsts = [positions_TK[:, :k].min(1) for k in numbers]
        # The 19 far tokens of the last target once, then what stands between first token and target.
        of_sets = sum(int((range(19, 24) - first).sum()) for first in firsts)
        assert found == number * (19 + of_sets)
        assert found == pytest.approx(costs.sparse_contexts([rule], [1, 3]), rel=tolerance)
        counted, whole = counted + found, whole + number * len(numbers) * 5 * 23
    assert counted < 0.75 * whole


@pytest.mark.parametrize("intervention", ["remove", "background"])
def test_a_screen_costs_about_what_its_formula_says(
    make_olmo: Callable[..., OLMo], intervention: str
) -> None:
    lengths = ContextLengths(short_context_length=4, long_context_length=204, targets_per_chunk=5)
    costs = RuleCosts(4, 204, 5, intervention, num_backgrounds=2, screen=12)
    own, null, *backgrounds = np.random.default_rng(1).integers(0, 48, (4, 204))
    options = {"background_ids_BL": np.stack(backgrounds)} if intervention == BACKGROUND else {}
    counted = {}
    for name in ("own", "other_document"):
        model = CountingLM(OLMoCausalLM(make_olmo(max_sequence_length=204)))
        measurement = Measurement(model, lengths, Batching(1), screen=12)
        context = far_contexts(measurement, own, null, **options)[name]
        for rule in ("leave_one_out", "leave_one_out_divergence"):
            selected_positions(context, rule, 3, seed=[0])
        counted[name] = model.token_forwards
    # 195 far tokens: 6 blocks of 32, then 12 of 8, of 2, and of 1, one beside them, and the 4 nearest
    assert counted["own"] == pytest.approx(costs.token_forwards("leave_one_out", 3), rel=1 / 4)
    assert counted["other_document"] == pytest.approx(costs.null_removals(), rel=1 / 4)
    exact = replace(costs, screen=None)
    assert 3 * costs.token_forwards("leave_one_out", 3) < exact.token_forwards("leave_one_out", 3)
    # Four times the length costs little more than four times as much; the exact way costs sixteen times.
    of_lengths = [
        RuleCosts(64, length, 16, "background", screen=64).token_forwards("leave_one_out", 1)
        for length in (2048, 8192, 32768)
    ]
    assert of_lengths[0] < 2048**2 / 2 / 7
    assert of_lengths[2] < 5.2 * of_lengths[1] < 5.2**2 * of_lengths[0]


@pytest.mark.parametrize("null_fraction", [0.0, 1.0])
@pytest.mark.parametrize(
    ("intervention", "num_judges"), [("remove", 0), ("background", 0), ("background", 2)]
)
def test_what_a_chunk_costs_is_planned_to_a_quarter(
    intervention: str, num_judges: int, null_fraction: float, make_olmo: Callable[..., OLMo]
) -> None:
    chunk = Chunk("0" * 8, 0, CHUNKS[0], np.random.default_rng(2).integers(0, 48, (3, 24)))
    numbers = {rule: studied_numbers(rule, [1, 4, 8], 15) for rule in DEFAULT_RULES}
    request = Request(
        lengths=LENGTHS, largest_k=8, numbers_of_rule=numbers, intervention=intervention, num_backgrounds=2,
        null_fraction=null_fraction, choosers_judge=not num_judges,
    )  # fmt: skip
    models = [CountingLM(OLMoCausalLM(make_olmo(seed=seed))) for seed in range(1 + num_judges)]
    loaded = [LoadedModel(str(seed), model, Batching(1)) for seed, model in enumerate(models)]
    measure_chunk(loaded[:1], chunk, loaded[1:], request)
    planned = planned_tokens(request, 1, num_judges, "0")
    assert planned == pytest.approx(sum(model.token_forwards for model in models), rel=1 / 4)
