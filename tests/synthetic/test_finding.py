"""Selections in synthetic examples: planted evidence is found."""

import numpy as np
import pytest
from hand_made_models import EvidenceLM

from pipeline.measuring.flags import ContextLengths
from pipeline.synthetic.evaluation import selections

SURE = 4.0
TOKENS = np.array([5, 1, 2, 6, 7, 8, 3])  # the answer, 3, is sure where 1 and 2 are both seen
LENGTHS = ContextLengths(short_context_length=2, long_context_length=7, targets_per_chunk=1)
OWN = [TOKENS.tolist()]


def positions(rule: str, ablation: str, swaps: list[list[int]] = OWN) -> list[int]:
    model = EvidenceLM(10, 3, lambda seen: SURE if {1, 2} <= seen else 0.0)
    chosen = selections(model, TOKENS, np.array(swaps), LENGTHS, [rule], 2, np.random.default_rng(0))
    by_ablation = {name: positions_TK for _, name, _, positions_TK in chosen}
    assert list(by_ablation) == ["mask", "swap"]
    return sorted(by_ablation[ablation][0].tolist())


@pytest.mark.parametrize("rule", ["leave_one_out", "leave_one_out_divergence"])
def test_what_must_be_there_is_found_by_removing_it(rule: str) -> None:
    assert positions(rule, "mask") == [1, 2]


@pytest.mark.parametrize("rule", ["leave_one_out", "leave_one_out_divergence"])
def test_a_background_is_a_mean_over_other_examples(rule: str) -> None:
    # The first draw replaces the 1 by itself and says nothing of it; the second does.
    says_nothing = TOKENS.copy()
    tells = TOKENS.copy()
    says_nothing[2] = tells[1] = tells[2] = 9
    one_draw = [says_nothing.tolist()]
    assert positions(rule, "swap", one_draw) == [2, 3]  # of the others the nearest
    assert positions(rule, "swap", [*one_draw, tells.tolist()]) == [1, 2]
