"""Titles: each sentence where the data support it, and what stands there where they do not."""

import pandas as pd
import pytest

from analysis import drawing as titles
from analysis.drawing import TRAINED_LONG, TRAINED_POSE, Role
from analysis.gap import scale as scale_figures
from analysis.gap import slopes as gap_verdicts
from analysis.gap import sparsity as sparsity_figures
from analysis.gap.slopes import NO_CONTROLS, WITH_GAIN
from analysis.gap.sparsity import BEYOND_NULL
from analysis.losses import calibration as calibration_figures
from analysis.losses import losses as length_figures
from analysis.losses import token_worth as recovered_figures
from analysis.losses import token_worth as token_effect_figures
from analysis.rules import selection as rule_figures

Ends = tuple[float, float, float]


def ends(name: str, interval: Ends) -> dict[str, float]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), interval, strict=True))


def shares(interval: Ends, ks: tuple[int, ...] = (1, 4, 16)) -> pd.DataFrame:
    """The interval at 4, something else at every other k."""
    return pd.DataFrame([{"k": k, **ends("share", interval if k == 4 else (9, 8, 10))} for k in ks])


CARRY = "4 tokens carry 65 % of what the far context is worth"
CLEAR, UNCLEAR = (0.65, 0.58, 0.72), (0.1, -0.1, 0.3)


@pytest.mark.parametrize(
    ("chosen", "nearest", "title"),
    [
        (CLEAR, (0.16, 0.1, 0.2), f"{CARRY}, the nearest 4 carry 16 %"),
        (CLEAR, (0.5, 0.4, 0.6), CARRY),
        (CLEAR, None, CARRY),
        (UNCLEAR, (0.9, 0.8, 1.0), "4 tokens carry no clear share of what the far context is worth"),
    ],
)  # fmt: skip
def test_what_few_tokens_carry(chosen: Ends, nearest: Ends | None, title: str) -> None:
    of_nearest = shares(nearest) if nearest else shares(CLEAR).iloc[:0]
    assert titles.carried_share(shares(chosen), of_nearest, "share") == title


def test_another_number_of_tokens_is_told_where_four_were_not_studied() -> None:
    rows = pd.DataFrame([{"k": 1, **ends("share", CLEAR)}])
    title = titles.carried_share(rows, rows.iloc[:0], "share", " beyond their null")
    assert title == "1 token carries 65 % of what the far context is worth beyond their null"


def test_no_share_is_told_of_no_gain() -> None:
    rows = pd.DataFrame({"rule": ["nearest"], "is_gain_clear": [False], "far_context": ["own"], "k": [4]})
    assert recovered_figures.recovered_title(rows).startswith("The long context brings no clear gain")


def test_a_rule_that_needs_its_null_has_no_share_of_its_own() -> None:
    row = {"rule": "leave_one_out", "is_gain_clear": True, "far_context": "own", "k": 4}
    rows = pd.DataFrame([row | ends("recovered_fraction", (1.5, 1.4, 1.6))])
    assert "%" not in recovered_figures.recovered_title(rows)


def test_effects_tell_the_divergence_where_it_was_measured() -> None:
    rule = {"rule": "leave_one_out_divergence", "k": 4}
    rows = pd.DataFrame(
        [
            rule | {"criterion": "loss"} | ends("share", UNCLEAR),
            rule | {"criterion": "divergence"} | ends("share", CLEAR),
        ]
    )
    assert "65 %" in token_effect_figures.effects_title(rows)
    assert "no clear share" in token_effect_figures.effects_title(rows[rows["criterion"] == "loss"])


ROLES = {
    "a": Role("trained at 256, seed 0", TRAINED_LONG, None, 256),
    "b": Role("trained at 256, seed 1", TRAINED_LONG, None, 256),
    "c": Role("trained at 64, PoSE", TRAINED_POSE, None, 64),
}
HELP, HELD = "1,008 tokens instead of 16 help", "with the gain held constant it"
UP, DOWN, NEITHER = (0.5, 0.4, 0.6), (-0.5, -0.6, -0.4), (0.1, -0.1, 0.3)


@pytest.mark.parametrize(
    ("a", "b", "c", "title"),
    [
        (UP, UP, UP, "Every model is worse with 1,008 tokens than with 16"),
        (DOWN, DOWN, DOWN, "Every model is better with 1,008 tokens than with 16"),
        (NEITHER, NEITHER, NEITHER, "No model is clearly better or worse with 1,008 tokens than with 16"),
        (DOWN, DOWN, UP, f"{HELP} models trained at 256, and hurt models trained at 64 with PoSE"),
        (DOWN, NEITHER, NEITHER, f"{HELP} models trained at 256, seed 0"),
    ],
)  # fmt: skip
def test_who_gains_and_loses_by_length(a: Ends, b: Ends, c: Ends, title: str) -> None:
    changes = [
        {
            "model": model,
            "context_length": length,
            **ends("loss_change", change if length > 16 else (0, 0, 0)),
        }
        for model, change in zip("abc", (a, b, c), strict=True)
        for length in (16, 1008)
    ]
    assert length_figures.lengths_title(pd.DataFrame(changes), ROLES) == title


@pytest.mark.parametrize(
    ("without", "with_gain", "title"),
    [
        ((UP, UP), (NEITHER, NEITHER), f"The gap rises with k*; {HELD} neither rises nor falls steadily"),
        ((UP, UP), (UP, UP), "The gap rises with k*, with or without the gain held constant"),
        ((NEITHER, NEITHER), (DOWN, DOWN), f"The gap neither rises nor falls steadily with k*; {HELD} falls"),
        ((UP, NEITHER), (NEITHER, NEITHER),
         f"The gap rises for 1 of 2 models with k*; {HELD} neither rises nor falls steadily"),
        ((UP, DOWN), (UP, UP), f"The gap rises for 1 and falls for 1 of 2 models with k*; {HELD} rises"),
    ],
)  # fmt: skip
def test_how_the_gap_changes(without: tuple[Ends, ...], with_gain: tuple[Ends, ...], title: str) -> None:
    slopes = pd.DataFrame(
        [
            {"adjustment": adjustment, **ends("slope", slope)}
            for adjustment, of_models in ((NO_CONTROLS, without), (WITH_GAIN, with_gain))
            for slope in of_models
        ]
    )
    assert gap_verdicts.gap_title(slopes) == title


def test_nothing_is_said_of_slopes_that_cannot_be_estimated() -> None:
    rows = [{"adjustment": name, **ends("slope", (float("nan"),) * 3)} for name in (NO_CONTROLS, WITH_GAIN)]
    assert gap_verdicts.gap_title(pd.DataFrame(rows)).endswith("too few targets to say whether it rises")


def test_slopes_are_counted() -> None:
    rows = [(NO_CONTROLS, UP), (NO_CONTROLS, NEITHER), (WITH_GAIN, DOWN), (WITH_GAIN, NEITHER)]
    slopes = pd.DataFrame([{"adjustment": name, **ends("slope", slope)} for name, slope in rows])
    assert gap_verdicts.slopes_title(slopes) == (
        f"The gap rises with k* in 1 of 2 readings; {HELD} rises in none and falls in 1"
    )


@pytest.mark.parametrize(
    ("gain", "carried", "title"),
    [
        ((0.38, 0.3, 0.46), (0.34, 0.25, 0.43),
         "From 0.34 M to 2.3 M parameters the worth of the far context rises from 0.07 to 0.38 nats;"
         " the share that the nearest 16 carry falls from 68 % to 34 %"),
        ((0.38, 0.3, 0.46), (0.6, 0.5, 0.7),
         "From 0.34 M to 2.3 M parameters the worth of the far context rises from 0.07 to 0.38 nats"),
        ((0.08, 0.06, 0.1), (0.6, 0.5, 0.7),
         "No clear difference between 0.34 M parameters and 2.3 M parameters"),
    ],
)  # fmt: skip
def test_what_changes_with_size(gain: Ends, carried: Ends, title: str) -> None:
    gains = pd.DataFrame(
        [
            {"num_parameters": size, **ends("loss_difference", interval)}
            for size, interval in ((340_000, (0.068, 0.051, 0.085)), (2_300_000, gain))
        ]
    )
    of_nearest = [
        {"num_parameters": size, "rule": "nearest", "k": 16, **ends("share", interval)}
        for size, interval in ((340_000, (0.684, 0.583, 0.81)), (2_300_000, carried))
    ]
    assert scale_figures.scale_title(gains, pd.DataFrame(of_nearest)) == title


def test_how_many_rules_find_something() -> None:
    rows = pd.DataFrame(
        [
            {"rule": rule, "sees_answer": True, "null_recovered_loss": null,
             **ends("recovered_loss", (1.0, 0.9, 1.1)), **ends("effect", effect)}
            for rule, null, effect in (("leave_one_out", 0.91, UP), ("greedy", 0.95, NEITHER))
        ]
    )  # fmt: skip
    assert rule_figures.rules_title(rows) == (
        "Of what rules that see the answer recover, 91 to 95 % is their null; 1 of 2 rules find something of"
        " this document"
    )
    nothing = rows.assign(null_recovered_loss=1.1, effect_low=-1.0)
    assert rule_figures.rules_title(nothing) == (
        "Of what rules that see the answer recover, all is their null; none of 2 rules find something of"
        " this document"
    )
    blind = rows.assign(rule=["nearest", "random"], sees_answer=False)
    assert rule_figures.rules_title(blind) == "1 of 2 rules find something of this document"


def test_for_how_many_few_tokens_suffice() -> None:
    needed = pd.DataFrame(
        [
            {"model": model, "measure": measure, "k": k, "share": share, "share_low": share / 2}
            for measure in ("leave_one_out_divergence", "leave_one_out" + BEYOND_NULL)
            for model, shares in (("a", (0.1, 0.09)), ("b", (0.2, 0.29)))
            for k, share in zip((1, 4), shares, strict=True)
        ]
    )
    assert sparsity_figures.sparsity_title(needed) == (
        "4 tokens suffice for 9 to 29 % of the predictions that gain from the far context"
    )
    assert sparsity_figures.sparsity_title(needed.assign(share_low=0.0)).endswith("is not clear")


@pytest.mark.parametrize(
    ("slopes", "title"),
    [
        ([(1.0, 0.9, 1.1)],
         "Gains come as expected: no slope differs clearly from that of a calibrated model, 1"),
        ([(1.0, 0.9, 1.1), (0.5, 0.4, 0.6)], "Of 2 slopes, 1 is flatter than that of a calibrated model, 1"),
        ([(2.0, 1.5, 2.5)], "Of 1 slope, 1 is steeper than that of a calibrated model, 1"),
        ([(float("nan"),) * 3], "Gains that came, beside those that were expected"),
    ],
)  # fmt: skip
def test_whether_gains_come_as_expected(slopes: list[Ends], title: str) -> None:
    rows = pd.DataFrame([ends("slope", slope) for slope in slopes])
    assert calibration_figures.calibration_title(rows) == title


@pytest.mark.parametrize(
    ("num_seeds", "words"), [([1, 1], "1 seed"), ([3, 3], "3 seeds"), ([1, 3, 2], "1 to 3 seeds")]
)
def test_seeds_are_counted(num_seeds: list[int], words: str) -> None:
    assert titles.counted_seeds(pd.DataFrame({"num_seeds": num_seeds})) == words
