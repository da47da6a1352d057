"""The expected gap: the mean of the drawn gap over answers that the reference draws, and sums by hand."""

import numpy as np
import pandas as pd
import pytest

from analysis.gap import gaps as expected_gaps
from analysis.read import TARGET


def rows(model: str, losses: list[float], divergences: list[float | None]) -> pd.DataFrame:
    num_targets = len(losses)
    return pd.DataFrame(
        {
            "model": model, "document_id": [f"d{index // 2}" for index in range(num_targets)],
            "chunk_index": 0, "target_position": range(num_targets), "long_context_loss": losses,
            "reference_divergence": divergences,
        }
    )  # fmt: skip


@pytest.fixture
def by_hand() -> pd.DataFrame:
    return pd.concat(
        [
            rows("ref", [1.0] * 4, [0.0] * 4),
            rows("seed", [1.0, 1.0, 2.0, 2.0], [0.125, 0.125, 0.25, 0.5]),
            rows("short", [2.0, 2.0, 2.0, 4.0], [1.125, 0.125, 0.5, 1.0]),
            rows("old", [2.0] * 4, [None] * 4),
        ]
    )


def test_the_floor_is_a_long_seed_that_is_not_the_reference(by_hand: pd.DataFrame) -> None:
    assert expected_gaps.floor_models(by_hand, ["ref", "seed", "old", "nobody"]) == ["seed"]
    assert expected_gaps.floor_models(by_hand.drop(columns="reference_divergence"), ["seed"]) == []


def test_gaps_by_hand(by_hand: pd.DataFrame) -> None:
    gaps = expected_gaps.expected_gaps(by_hand, short_models=["short", "old"], floor_model="seed")
    assert set(gaps["model"]) == {"short"}
    assert gaps["expected_gap"].tolist() == [1.0, 0.0, 0.25, 0.5]
    assert gaps["generalization_gap"].tolist() == [1.0, 1.0, 0.0, 2.0]
    (row,) = expected_gaps.mean_gaps(gaps).to_dict("records")
    assert (row["num_targets"], row["num_documents"]) == (4, 2)
    assert (row["expected_gap"], row["generalization_gap"], row["floor_divergence"]) == (0.4375, 1.0, 0.25)
    # Documents of 1/2 and 3/8 nats: an error of 1/16, times t at one degree of freedom.
    assert row["expected_gap_high"] == pytest.approx(0.4375 + 12.7062 / 16)
    (sentence,) = expected_gaps.gap_sentences(expected_gaps.mean_gaps(gaps), "seed")
    assert "the gap to seed is expected to be 0.438 nats" in sentence


def test_drawn_from_the_reference_the_gaps_agree() -> None:
    """KL(ref || short) - KL(ref || seed) is the mean over x ~ ref of ln p_seed(x) - ln p_short(x)."""
    generator = np.random.default_rng(1)
    num_targets = 6000
    log_p = {name: np.log(generator.dirichlet(np.ones(6))) for name in ("ref", "seed", "short")}
    answers = generator.choice(6, size=num_targets, p=np.exp(log_p["ref"]))
    tables = [
        rows(
            name,
            (-of_model[answers]).tolist(),
            [float(np.exp(log_p["ref"]) @ (log_p["ref"] - of_model))] * num_targets,
        )
        for name, of_model in log_p.items()
    ]
    gaps = expected_gaps.expected_gaps(pd.concat(tables), short_models=["short"], floor_model="seed")
    assert len(gaps.drop_duplicates(TARGET)) == num_targets
    (row,) = expected_gaps.mean_gaps(gaps).to_dict("records")
    assert row["generalization_gap_low"] <= row["expected_gap"] <= row["generalization_gap_high"]
    assert row["generalization_gap_high"] - row["generalization_gap_low"] < 0.2
