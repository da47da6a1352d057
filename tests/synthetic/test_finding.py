"""Selections in synthetic examples: planted evidence is found."""

import numpy as np
import pytest
import torch
from hand_made_models import EvidenceLM

from sparsity_length.synthetic.config import TaskConfig
from sparsity_length.synthetic.evaluation import found_dependencies
from sparsity_length.synthetic.tasks import Example

SURE = 4.0
TOKENS = np.array([5, 1, 2, 6, 7, 8, 3])  # the answer, 3, is sure where 1 and 2 are both seen


class Planted(EvidenceLM):
    config = TaskConfig("copy", "contiguous")

    def at(self, position_ids_L: torch.Tensor) -> "Planted":
        return self


def positions(rule: str, ablation: str, *others: np.ndarray) -> list[int]:
    model = Planted(10, 3, lambda seen: SURE if {1, 2} <= seen else 0.0)
    examples = [Example(tokens_S, 6, ((1, 2),), None) for tokens_S in (TOKENS, *others)]
    tables = found_dependencies(model, examples, np.random.default_rng(0), [rule], 2)  # type: ignore[arg-type]
    rows = tables["found_dependencies"].query("example_index == 0")
    assert rows["ablation"].unique().tolist() == ["mask", "swap"]
    return sorted(rows[rows["ablation"] == ablation]["context_position"])


@pytest.mark.parametrize("rule", ["leave_one_out", "leave_one_out_divergence"])
def test_what_must_be_there_is_found_by_removing_it(rule: str) -> None:
    assert positions(rule, "mask") == [1, 2]


@pytest.mark.parametrize("rule", ["leave_one_out", "leave_one_out_divergence"])
def test_a_background_is_a_mean_over_other_examples(rule: str) -> None:
    # The first example replaces the 1 by itself and says nothing of it; the second does.
    says_nothing = TOKENS.copy()
    tells = TOKENS.copy()
    says_nothing[2] = tells[1] = tells[2] = 9
    assert positions(rule, "swap", says_nothing) == [2, 3]  # of the others the nearest
    assert positions(rule, "swap", says_nothing, tells) == [1, 2]
