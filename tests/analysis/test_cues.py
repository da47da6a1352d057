"""Contrasts of signs by hand, and that their figure can be read."""

import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible
from scipy.stats import t

from analysis.figures import cues

SIZES = [64, 128, 256, 512, 1024]
GROWTHS = {
    "signs_1": 0.1,
    "signs_2": 0.2,
    "signs_4": 0.4,
    "signs_1_local": 0.0,
    "signs_2_local": 0.1,
    "signs_4_local": 0.1,
    "signs_8_weak": 1.2,
    "signs_32_weak": 0.5,
    "signs_growing": 0.9,
}
SEED_LUCK = np.array([-0.1, 0.0, 0.1, 0.2])
"""Of the task of four signs, which no other has."""


def training(task: str, seed: int, positions: str, scaling: str) -> pd.DataFrame:
    """Excess loss that grows on a line up to eight times the trained length, and anyhow beyond."""
    growth = GROWTHS[task] / (2 if positions == "coupled" else 1) / (4 if scaling == "log_length" else 1)
    growth += SEED_LUCK[seed] * (task == "signs_4" and positions == "contiguous" and scaling == "none")
    excess = [0.02 + growth * doublings for doublings in range(4)]
    return pd.DataFrame(
        {
            "task": task,
            "positions": positions,
            "attention_scaling": scaling,
            "seed": seed,
            "largest_train_size": 64,
            "size": SIZES,
            "excess_loss": [*excess, 9.0],
            "sign_attention": [[0.1, 0.5]] * 5,
        }
    )


@pytest.fixture(scope="module")
def accuracy() -> pd.DataFrame:
    return pd.concat(
        training(task, seed, positions, scaling)
        for task in GROWTHS
        for seed in range(4)
        for scaling in ("none", "log_length")
        for positions in ("contiguous", *(["coupled"] if task in ("signs_1", "signs_2", "signs_4") else []))
    )


def test_contrasts_are_differences_of_slopes_over_paired_seeds(accuracy: pd.DataFrame) -> None:
    table = cues.contrasts(cues.growths(accuracy)).set_index(["contrast", "attention_scaling"])
    luck = SEED_LUCK.mean()
    expected = {
        ("four signs less one", "none"): 0.3 + luck,
        ("four signs less one", "log_length"): 0.075,
        ("near less anywhere", "none"): (0.2 - 0.7 - luck) / 3,
        ("coupled less plain positions", "none"): (0.35 - 0.7 - luck) / 3,
        ("growing number less fixed", "none"): 0.4,
        ("scaled attention less plain", "none"): (0.175 - 0.7 - luck) / 3,
        ("growing number less eight", "log_length"): -0.075,
        ("scaled attention less plain, 32 weak", "none"): -0.375,
    }
    for place, difference in expected.items():
        assert table["difference"][place] == pytest.approx(difference), place
    row = table.loc[("four signs less one", "none")]
    half = t.ppf(0.975, 3) * SEED_LUCK.std(ddof=1) / 2
    assert row["difference_high"] - row["difference"] == pytest.approx(half)
    assert (row["first"], row["second"], row["num_seeds"]) == (
        pytest.approx(0.4 + luck),
        pytest.approx(0.1),
        4,
    )
    deciding = table[table["holm_p_value"].notna()]
    assert deciding.index.tolist() == [(name, "none") for name in cues.CONTRASTS]
    assert (deciding["holm_p_value"] >= deciding["p_value"]).all()


def test_a_seed_without_one_of_the_trainings_is_left_out(accuracy: pd.DataFrame) -> None:
    is_missing = (accuracy["task"] == "signs_2") & (accuracy["seed"] == 3)
    table = cues.contrasts(cues.growths(accuracy[~is_missing])).set_index("contrast")
    assert table["num_seeds"]["near less anywhere"].tolist() == [3, 3]
    assert table["num_seeds"]["four signs less one"].tolist() == [4, 4]


def test_the_figure_can_be_read(accuracy: pd.DataFrame) -> None:
    assert_legible(cues.signs_figure(accuracy))
