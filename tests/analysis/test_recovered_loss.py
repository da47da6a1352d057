"""What k tokens recover and are worth, losses by length: by hand, and as drawn; the same of frames."""

import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from sparsity_length import InputError, plot, summary
from sparsity_length.figures import drawing, recovered_loss
from sparsity_length.figures.losses import (
    lengths_figure,
    losses_beside_reference,
    losses_by_context_length,
    windows_keeping,
)

T_1 = 12.7062
T_2 = 4.30265
"""Student's t for 95% with one and with two degrees of freedom."""
LABEL = drawing.ModelLabel("m", drawing.solid(drawing.BLACK), "", None)


def choice(
    rule: str,
    k: int,
    sparse: Sequence[float],
    divergence: Sequence[float],
    distant_context: str = "own",
    **more: object,
) -> pd.DataFrame:
    """Four targets of two documents: 3 nats under the short context, 2 under the long; 1 expected."""
    return pd.DataFrame(
        {
            "model": "m",
            "evaluator": "m",
            "document_id": ["a", "a", "b", "b"],
            "chunk_index": 0,
            "target_position": range(4),
            "rule": rule,
            "distant_context": distant_context,
            "k": k,
            "short_context_loss": 3.0,
            "long_context_loss": 2.0,
            "sparse_context_loss": list(sparse),
            "short_context_divergence": 1.0,
            "sparse_context_divergence": list(divergence),
        }
        | more
    )


NULL_OF_B = "distant_context == 'own' or document_id == 'b'"


@pytest.fixture
def by_hand() -> pd.DataFrame:
    """Own tokens recover 3 of 4 nats; the null 1 of 4."""
    own = choice("recency", 1, [2.0, 3.0, 2.0, 2.0], [1.0] * 4)
    # The long loss of the null's own rows must not be used: a gain is always the own document's.
    null = choice("recency", 1, [3.0, 3.0, 3.0, 2.0], [1.0] * 4, "other_document", long_context_loss=9.0)
    return pd.concat([own, null])


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (
            "document_id > ''",
            {
                "num_targets": 4,
                "num_documents": 2,
                "gain": 1,
                "recovered": 0.75,
                "null_recovered": 0.25,
                "effect": 0.75,
                # Document a recovers 1 of 2 nats, b 2 of 2: an error of 1/4, times t.
                "share": 0.75,
                "share_low": 0.75 - T_1 / 4,
                "share_high": 0.75 + T_1 / 4,
                # Both documents recover 1 nat beyond their null over 2 targets: paired, no resample differs.
                "excess": 0.5,
                "excess_low": 0.5,
                "excess_high": 0.5,
            },
        ),
        # Of a null of b alone: recency needs none, and keeps a, which only the excess leaves out.
        (
            NULL_OF_B,
            {"num_targets": 4, "recovered": 0.75, "effect": 0.75, "null_recovered": 0.5, "excess": 0.5},
        ),
        # A single document gives no interval.
        ("document_id == 'a'", {"recovered_low": np.nan, "share": np.nan}),
    ],
)
def test_what_is_recovered_by_hand(by_hand: pd.DataFrame, kept: str, expected: dict[str, float]) -> None:
    effects = recovered_loss.token_effects(by_hand.query(kept)).set_index("criterion")
    assert effects.loc["loss", [*expected]].to_dict() == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("rule", "own", "null", "swap", "by_loss", "by_divergence"),
    [
        (
            "greedy_divergence",
            ([2.0, 2.5, 2.5, 2.0], [0.25, 0.5, 0.5, 0.25]),
            ([3.0, 3.0, 2.5, 2.5], [0.5, 0.5, 1.0, 0.5]),
            {},
            (1, 0.75, 0.25, 0.5, 0.5),
            (1, 0.625, 0.375, 0.25, 0.25),
        ),
        # The swapped context loses another nat: 4, of which the tokens recover 1.5 and others' 0.
        (
            "add_one_in_divergence",
            ([2.5] * 4, [0.5] * 4),
            ([4.0] * 4, [1.5] * 4),
            {"swapped_loss": 4.0, "swapped_divergence": 1.5},
            (2, 1.5, 0, 1.5, 0.75),
            (1.5, 1, 0, 1, 2 / 3),
        ),
    ],
)
def test_both_criteria_by_hand(
    rule: str,
    own: tuple[list[float], list[float]],
    null: tuple[list[float], list[float]],
    swap: dict[str, float],
    by_loss: tuple[float, ...],
    by_divergence: tuple[float, ...],
) -> None:
    rows = pd.concat([choice(rule, 1, *own, **swap), choice(rule, 1, *null, "other_document", **swap)])
    effects = recovered_loss.token_effects(rows).set_index("criterion").loc[["loss", "divergence"]]
    np.testing.assert_allclose(
        effects[["gain", "recovered", "null_recovered", "excess", "share"]], [by_loss, by_divergence]
    )


def test_curves_of_the_loss_by_hand(by_hand: pd.DataFrame) -> None:
    """Document a costs a nat more throughout; the null is of b alone, where it recovers 1 of 2 nats."""
    by_hand.loc[by_hand["document_id"] == "a", [name for name in by_hand if name.endswith("_loss")]] += 1
    curves = recovered_loss.loss_curves(by_hand.query(NULL_OF_B)).set_index(["distant_context", "k"])
    assert curves["loss"].to_dict() == {
        ("other_document", 0): 3.5,
        ("other_document", 1): 3.0,
        ("own", 0): 3.5,
        ("own", 1): 2.75,
    }
    ends = curves.loc[("own", 1), ["loss_low", "loss_high"]].tolist()
    assert ends == pytest.approx([2.75 - T_1 / 4, 2.75 + T_1 / 4], abs=1e-5)
    assert (curves[["long_loss", "long_loss_low", "long_loss_high"]] == 2.5).all(axis=None)
    assert (curves.loc[("own", 0), ["loss_low", "loss_high"]] == 3.5).all()


def planted(selected: float, recency: float) -> pd.DataFrame:
    """Losses of 24 texts of 8 targets; targets of a text gain 0.5 to 2 nats by all distant tokens."""
    targets = pd.DataFrame(
        {
            "model": "m",
            "document_id": [f"{text:02}" for text in range(24) for _ in range(8)],
            "chunk_index": 0,
            "target_position": [*range(8)] * 24,
            "distant_context": "own",
            "k": 16,
            "short_context_loss": 3.0,
            "long_context_loss": np.linspace(2.5, 1, 192),
        }
    )
    return pd.concat(
        [
            targets.assign(rule=rule, sparse_context_loss=3.0 - share * (3.0 - targets["long_context_loss"]))
            for rule, share in (("leave_one_out_divergence", selected), ("recency", recency))
        ]
    )


@pytest.mark.parametrize(
    ("selected", "recency", "expected"),
    [(0.7, 0.4, "supported"), (0.4, 0.1, "inconclusive"), (0.7, 0.65, "refuted"), (0.3, 0.35, "refuted")],
)
def test_the_verdict_follows_the_planted_fractions(selected: float, recency: float, expected: str) -> None:
    verdict, share, lead = recovered_loss.paper_verdict(planted(selected, recency))
    assert verdict == expected
    assert (share.estimate, lead.estimate) == pytest.approx((selected, selected - recency))


def test_the_null_baseline_is_subtracted_where_there_is_one() -> None:
    """It recovers 10% in the first three texts, all else is planted to recover 70%."""
    null = planted(0.1, 0.4).query("document_id < '03'").assign(distant_context="other_document")
    # A nat more of its own baseline, which does not count for the gain.
    null[["short_context_loss", "sparse_context_loss"]] += 1.0
    targets = recovered_loss.amounts_beside(pd.concat([planted(0.7, 0.4), null]), recovered_loss.NULL)
    assert targets["document_id"].nunique() == 3
    assert targets["lead"].sum() / targets["gain"].sum() == pytest.approx(0.6)


def test_length_losses_weigh_documents_by_their_targets() -> None:
    # Several chunks of a document are not several documents.
    losses = pd.read_csv(
        StringIO("""
        model document_id chunk_index context_length num_targets mean_loss
        m     a           0           16             1           4.0
        m     b           0           16             1           3.0
        m     b           1           16             2           1.5
        m     a           0           32             1           3.0
        m     b           0           32             1           1.0
        m     b           1           32             2           2.5
        """),
        sep=r"\s+",
    )
    table = losses_by_context_length(losses).set_index("context_length")
    assert table["loss"].to_dict() == {16: 2.5, 32: 2.25}
    assert table[["num_targets", "num_documents"]].to_numpy().tolist() == [[4, 2], [4, 2]]
    # A single model has no other to be compared with: its loss itself is drawn.
    (ax,) = lengths_figure(table.reset_index(), {"m": LABEL}, [], "m").axes
    assert ax.lines[0].get_ydata().tolist() == [2.5, 2.25]


def test_the_difference_to_a_reference_is_of_chunks_by_hand() -> None:
    losses = pd.DataFrame(
        {
            "model": ["a", "a", "b", "b"],
            "document_id": ["1", "2"] * 2,
            "chunk_index": 0,
            "context_length": 16,
            "num_targets": [1, 3] * 2,
            "mean_loss": [2.0, 5.0, 2.5, 5.25],
        }
    )
    rows = losses_beside_reference(losses, "a", 16).set_index("model")
    assert rows.loc["b", "difference"] == pytest.approx((1 * 0.5 + 3 * 0.25) / 4)
    assert rows.loc["a", ["difference", "difference_low", "difference_high"]].tolist() == [0, 0, 0]
    # The documents differ by 3 nats, the differences by 0.25: that is what the interval is of.
    (of_loss,) = losses_by_context_length(losses).query("model == 'b'").to_dict("records")
    wide = of_loss["loss_high"] - of_loss["loss_low"]
    assert 0 < rows.loc["b", "difference_high"] - rows.loc["b", "difference_low"] < 0.2 * wide


def test_windows_by_hand() -> None:
    # Of 1 nat 16 tokens keep 0.5 and 32 keep 0.9: 0.7 lies halfway in log2 w.
    lengths_J = np.array([8, 16, 32, 64])
    values_XJ = np.array([[5.0, 4.5, 4.1, 4.0], [4.0, 3.9, 4.3, 4.0], [5.0, 3.9, 4.2, 4.0]])
    found = [windows_keeping(values_XJ, lengths_J, percent) for percent in (50, 70, 90, 95)]
    expected = [
        [16, 2**4.5, 32, 2**5.5],
        [np.nan] * 4,  # 64 tokens are worth no more than 8
        [8 * 2 ** (share / 1.1) for share in (0.5, 0.7, 0.9, 0.95)],  # more harms: the first w counts
    ]
    np.testing.assert_allclose(np.transpose(found), expected)


def assert_drawn(ax: Axes, index: int, rows: pd.DataFrame, value: str = "loss") -> Line2D:
    """The index-th line with bars is this column of the rows, with its interval."""
    line, _, (bars,) = ax.containers[index]
    ends = [segment[:, 1] for segment in bars.get_segments()]
    expected = rows[[value, f"{value}_low", f"{value}_high"]].astype(float)
    np.testing.assert_allclose(np.column_stack([line.get_ydata(), ends]).astype(float), expected)
    return line


def test_any_name_is_drawn_as_it_is(tmp_path: Path) -> None:
    figure, (ax,) = drawing.panels(1, 2)
    name = "a$x_{1$b"
    drawing.draw_line(ax, [1, 2], pd.DataFrame({"loss": [1.0, 2.0]}), "loss", drawing.solid("red"), name)
    ax.set_title(name)
    drawing.put_title(figure, name, name)
    drawing.save(figure, tmp_path, "figure")
    assert {text.get_text() for text in ax.texts} == {name} and (tmp_path / "figure.pdf").exists()


def test_the_paper_figure_is_its_table() -> None:
    choices = [
        choice(rule, k, np.arange(2.9, 3.3, 0.1) - gain / (4 - k), [1.0] * 4, distant_context)
        for rule, gain in {"leave_one_out": 1.6, "recency": 0.9, "random": 0.3}.items()
        for distant_context in ("own", "other_document")
        for k in (1, 2)
    ]
    curves = recovered_loss.loss_curves(pd.concat(choices))
    (ax,) = recovered_loss.loss_figure(curves, LABEL, "another model").axes
    of_curve = curves.set_index(["rule", "distant_context"])
    drawn = [
        ("leave_one_out", "own"),
        ("recency", "own"),
        ("random", "own"),
        ("leave_one_out", "other_document"),
    ]
    own, _, _, null = (assert_drawn(ax, index, of_curve.loc[key]) for index, key in enumerate(drawn))
    assert null.get_color() == own.get_color() == drawing.rule_style("leave_one_out")["color"]
    assert (null.get_linestyle(), own.get_linestyle()) == ("--", "-")
    assert_drawn(ax, 4, curves[:1], "long_loss")  # all distant tokens
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1", "2", "all"]
    # 0.8 nats less 0.05, of the gain of 1.
    assert {"selected, target-aware: 75%", "full context, 2.00", "short context, 3.00"} <= {
        text.get_text() for text in ax.texts
    }


def test_without_a_null_a_rule_that_needs_one_has_no_effect_and_others_are_drawn() -> None:
    needs_null = recovered_loss.token_effects(choice("leave_one_out", 1, [2.0] * 4, [0.5] * 4))
    assert needs_null.empty and {"gain", "effect", "effect_low", "effect_high", "share"} < {*needs_null}
    own = choice("leave_one_out_divergence", 1, [2.0] * 4, [0.5] * 4)
    effects = recovered_loss.token_effects(own)
    assert effects["effect"].tolist() == [1, 0.5] and effects["excess"].isna().all()
    recovered_loss.effects_figure(effects, LABEL)
    (ax,) = recovered_loss.loss_figure(recovered_loss.loss_curves(own), LABEL).axes
    assert "null baseline" not in {text.get_text() for text in ax.texts}


COLUMNS = [
    *("text", "position", "rank"),
    *("long_context_loss", "baseline_loss", "sparse_context_loss", "null_sparse_context_loss"),
    *("baseline_divergence", "sparse_context_divergence", "null_sparse_context_divergence"),
]
# Text 0 has two targets, text 1 one; the first two ranks of each, and of text 1 no loss with two.
INFLUENTIAL = pd.read_csv(
    StringIO("""
0 30 1  1.0 3.0 2.0 3.0  4.0 2.0 4.0
0 30 2  1.0 3.0 1.0 2.5  4.0 0.0 3.0
0 31 1  2.0 2.0 2.5 2.0  2.0 1.0 2.0
0 31 2  2.0 2.0 2.0 2.0  2.0 1.0 2.0
1 20 1  0.5 2.5 1.0 2.0  2.0 0.0 1.0
1 20 2  0.5 2.5 NaN NaN  2.0 NaN NaN
"""),
    sep=r"\s+",
    names=COLUMNS,
    dtype=dict.fromkeys(COLUMNS[3:], "float32"),
)
BY_LENGTH = pd.read_csv(
    StringIO("""
text context_length loss divergence
0    8              4    1
0    8              2    0.5
1    8              3    0.5
2    8              3    0
0    32             2    1
0    32             2    0.5
1    32             3    0.5
2    32             1    0
"""),
    sep=r"\s+",
)


def test_the_recovered_fraction_is_a_ratio_of_sums_with_an_interval_over_texts() -> None:
    table = summary(INFLUENTIAL).set_index(["criterion", "k"])
    assert table[["num_targets", "num_texts"]].to_numpy().tolist() == [[3, 2], [2, 1], [3, 2], [2, 1]]
    # By KL one token brings 4 to 2, 2 to 1 and 2 to 0: 5 of 8. Without text 0 it is 2/2, without text 1 3/6.
    # The jackknife's errors for two texts; of the excess, which is 1 in text 1 and 3 in text 0, it is none.
    half = T_1 * (2 / 2 - 3 / 6) / 2
    expected = {
        ("divergence", 1): {
            "gain": 8 / 3,
            "recovered_fraction": 5 / 8,
            "recovered_fraction_low": 5 / 8 - half,
            "recovered_fraction_high": 5 / 8 + half,
            "null_recovered_fraction": 1 / 8,
            "excess_fraction": 4 / 8,
            "excess_fraction_high": 4 / 8,
        },
        # By loss the gains are 2, 0 and 2; one token recovers 1, -0.5 and 1.5, the null 0, 0 and 0.5.
        ("loss", 1): {"gain": 4 / 3, "recovered_fraction": 2 / 4, "null_recovered_fraction": 0.5 / 4},
        # Two tokens stand in text 0 alone: 6 - 1 of 6. One text says nothing about others.
        ("divergence", 2): {
            "recovered_fraction": 5 / 6,
            "recovered_fraction_low": np.nan,
            "recovered_fraction_high": np.nan,
        },
    }
    for key, numbers in expected.items():
        assert table.loc[key, [*numbers]].to_dict() == pytest.approx(numbers, rel=1e-5, nan_ok=True), key


def test_without_a_null_baseline_there_is_no_excess() -> None:
    nulls = [name for name in COLUMNS if name.startswith("null")]
    table = summary(INFLUENTIAL.assign(**dict.fromkeys(nulls, np.nan)))
    assert table[["null_recovered_fraction", "excess_fraction"]].isna().all(axis=None)
    pd.testing.assert_series_equal(table["recovered_fraction"], summary(INFLUENTIAL)["recovered_fraction"])


def test_losses_by_context_length_are_means_over_targets_and_drawn_as_such() -> None:
    table = summary(BY_LENGTH).set_index("context_length")
    numbers = table[["loss", "divergence", "num_targets", "num_texts"]]
    assert numbers.T.to_dict("list") == {8: [3, 0.5, 4, 3], 32: [2, 0.5, 4, 3]}
    # Without one text after another the mean at 32 is 4/2, 5/3 and 7/3; three texts.
    half = T_2 * np.sqrt(2 * np.var([4 / 2, 5 / 3, 7 / 3]))
    assert table.loc[32, ["loss_low", "loss_high"]].tolist() == pytest.approx([2 - half, 2 + half], rel=1e-5)
    ax = plot(BY_LENGTH)
    assert plot(BY_LENGTH, ax) is ax  # a second line
    for bars in ax.containers:
        line, _, (intervals,) = bars.lines
        assert line.get_xydata().tolist() == [[8, 3], [32, 2]]
        assert intervals.get_segments()[1][:, 1].tolist() == pytest.approx([2 - half, 2 + half], rel=1e-5)
    assert len(ax.containers) == 2 and ax.get_xscale() == "log"


def test_other_frames_and_a_missing_matplotlib_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (summary, plot):
        with pytest.raises(InputError, match="losses with context_lengths"):
            function(pd.DataFrame({"text": [0], "short_context_loss": [1.0]}))
        with pytest.raises(InputError, match="losses with context_lengths"):
            function(None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="pip install matplotlib"):
        plot(BY_LENGTH)
