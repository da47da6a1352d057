"""What k tokens recover and are worth, losses by length: by hand, planted truth and nulls, as drawn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from synthetic_results import KS, SELECTION_BONUS, Truth

from sparsity_length.figures import drawing, recovered_loss
from sparsity_length.figures.drawing import BLACK, ModelLabel, model_labels, solid
from sparsity_length.figures.losses import (
    lengths_figure,
    losses_beside_reference,
    losses_by_context_length,
    windows_keeping,
)
from sparsity_length.figures.read import read_sparse_losses
from sparsity_length.figures.recovered_loss import (
    NULL,
    amounts_beside,
    loss_curves,
    paper_verdict,
    token_effects,
)


def choice(
    rule: str,
    k: int,
    sparse: Sequence[float],
    divergence: Sequence[float],
    distant_context: str = "own",
    **more: object,
) -> pd.DataFrame:
    """Four targets of two documents: 3 nats under the short context, 2 under the long; 1 expected."""
    rows = {
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
    return pd.DataFrame(rows | more)


def of(effects: pd.DataFrame, criterion: str) -> dict:
    (row,) = effects[effects["criterion"] == criterion].to_dict("records")
    return row


@pytest.fixture
def by_hand() -> pd.DataFrame:
    """Own tokens recover 3 of 4 nats; the null 1 of 4."""
    own = choice("recency", 1, [2.0, 3.0, 2.0, 2.0], [1.0] * 4)
    # The long loss of the null's own rows must not be used: a gain is always the own document's.
    null = choice("recency", 1, [3.0, 3.0, 3.0, 2.0], [1.0] * 4, "other_document", long_context_loss=9.0)
    return pd.concat([own, null])


def test_what_is_recovered_by_hand(by_hand: pd.DataFrame) -> None:
    row = of(token_effects(by_hand), "loss")
    assert (row["gain"], row["recovered"], row["null_recovered"], row["excess"]) == (1.0, 0.75, 0.25, 0.5)
    assert (row["num_targets"], row["num_documents"], row["effect"], row["share"]) == (4, 2, 0.75, 0.75)
    # Document a recovers 1 of 2 nats, b 2 of 2: an error of 1/4, times t at one degree of freedom.
    ends = row["share_low"], row["share_high"]
    assert ends == pytest.approx((0.75 - 12.7062 / 4, 0.75 + 12.7062 / 4))
    # Both documents recover 1 nat beyond their null over 2 targets: paired, no resample differs.
    assert (row["excess_low"], row["excess_high"]) == (0.5, 0.5)
    one = of(token_effects(by_hand[by_hand["document_id"] == "a"]), "loss")
    assert np.isnan([one["recovered_low"], one["share"]]).all()  # a single document gives no interval


def test_curves_of_the_loss_by_hand(by_hand: pd.DataFrame) -> None:
    """Document a costs a nat more throughout; the null is of b alone, where it recovers 1 of 2 nats."""
    losses = [name for name in by_hand if name.endswith("_loss")]
    by_hand.loc[by_hand["document_id"] == "a", losses] += 1
    rows = by_hand[(by_hand["distant_context"] == "own") | (by_hand["document_id"] == "b")]
    curves = loss_curves(rows).set_index(["distant_context", "k"])
    assert curves["loss"].to_dict() == {
        ("other_document", 0): 3.5,
        ("other_document", 1): 3.0,
        ("own", 0): 3.5,
        ("own", 1): 2.75,
    }
    own = curves.loc[("own", 1)]
    assert (own["loss_low"], own["loss_high"]) == pytest.approx((2.75 - 3.17655, 2.75 + 3.17655), abs=1e-5)
    assert (curves[["long_loss", "long_loss_low", "long_loss_high"]] == 2.5).all(axis=None)
    assert (curves.loc[("own", 0), ["loss_low", "loss_high"]] == 3.5).all()


@pytest.mark.parametrize("rule", SELECTION_BONUS)
def test_the_excess_finds_the_planted_gain_and_the_null_the_planted_bonus(
    sparse_context_losses: pd.DataFrame, truth: Truth, rule: str
) -> None:
    chosen = sparse_context_losses[
        (sparse_context_losses["model"] == "long-seed0") & (sparse_context_losses["rule"] == rule)
    ]
    effects = token_effects(chosen).set_index("k")
    assert list(effects.index) == KS
    for k in KS:
        planted = truth.recovered_gain(rule, k)
        bonus = SELECTION_BONUS[rule] * np.log2(k + 1)
        assert effects.loc[k, "excess"] == pytest.approx(planted.mean(), abs=0.005)
        assert effects.loc[k, "null_recovered"] == pytest.approx(bonus, abs=0.005)
        if rule == "leave_one_out":  # whose effect is what lies beyond the null
            share = planted.sum() / truth.targets["gain"].sum()
            assert effects.loc[k, "share"] == pytest.approx(share, abs=0.02)


def test_both_criteria_by_hand() -> None:
    own = choice("greedy_divergence", 2, [2.0, 2.5, 2.5, 2.0], [0.25, 0.5, 0.5, 0.25])
    null = choice("greedy_divergence", 2, [3.0, 3.0, 2.5, 2.5], [0.5, 0.5, 1.0, 0.5], "other_document")
    effects = token_effects(pd.concat([own, null]))
    by_loss = of(effects, "loss")
    by_divergence = of(effects, "divergence")
    assert (by_loss["gain"], by_loss["recovered"], by_loss["null_recovered"]) == (1.0, 0.75, 0.25)
    assert (by_loss["excess"], by_loss["share"]) == (0.5, 0.5)
    assert (by_divergence["gain"], by_divergence["recovered"]) == (1.0, 0.625)
    assert (by_divergence["null_recovered"], by_divergence["excess"]) == (0.375, 0.25)
    # Excesses of the documents by the divergence: 1/8 and 3/8.
    assert by_divergence["excess_high"] == pytest.approx(0.25 + 12.7062 / 8)
    assert by_loss["effect"] == by_loss["excess"]


def test_within_a_background_its_loss_is_the_baseline() -> None:
    """The swapped context loses another nat: 4, of which the tokens recover 1.5 and others' 0."""
    swap = {"swapped_loss": 4.0, "swapped_divergence": 1.5}
    own = choice("add_one_in_divergence", 1, [2.5] * 4, [0.5] * 4, **swap)
    null = choice("add_one_in_divergence", 1, [4.0] * 4, [1.5] * 4, "other_document", **swap)
    effects = token_effects(pd.concat([own, null]))
    by_loss = of(effects, "loss")
    by_divergence = of(effects, "divergence")
    assert (by_loss["gain"], by_loss["recovered"], by_loss["null_recovered"]) == (2.0, 1.5, 0.0)
    assert (by_loss["share"], by_divergence["gain"], by_divergence["excess"]) == (0.75, 1.5, 1.0)


SELECTED = "leave_one_out_divergence"
RECENCY = "recency"
FEW = 16


def planted(selected: float, recency: float) -> pd.DataFrame:
    """Losses of 24 texts of 8 targets; targets of a text gain 0.5 to 2 nats by all distant tokens."""
    rows = []
    for text in range(24):
        for target in range(8):
            gain = 0.5 + 1.5 * (text * 8 + target) / 191
            for rule, share in ((SELECTED, selected), (RECENCY, recency)):
                rows.append(
                    [
                        "m",
                        f"{text:02}",
                        0,
                        960 + 8 * target,
                        rule,
                        "own",
                        FEW,
                        3.0 - share * gain,
                        3.0,
                        3.0 - gain,
                    ]
                )
    columns = ["model", "document_id", "chunk_index", "target_position", "rule", "distant_context", "k"]
    return pd.DataFrame(
        rows, columns=[*columns, "sparse_context_loss", "short_context_loss", "long_context_loss"]
    )


@pytest.mark.parametrize(
    ("selected", "recency", "expected"),
    [(0.7, 0.4, "supported"), (0.4, 0.1, "inconclusive"), (0.7, 0.65, "refuted"), (0.3, 0.35, "refuted")],
)
def test_the_verdict_follows_the_planted_fractions(selected: float, recency: float, expected: str) -> None:
    verdict, share, lead = paper_verdict(planted(selected, recency))
    assert verdict == expected
    assert (share.estimate, lead.estimate) == pytest.approx((selected, selected - recency))


def test_the_null_baseline_is_subtracted_where_there_is_one() -> None:
    """It recovers 10% in the first three texts, all else is planted to recover 70%."""
    own = planted(0.7, 0.4)
    null = planted(0.1, 0.4).query("document_id < '03'").assign(distant_context="other_document")
    null["short_context_loss"] += 1.0  # of its own baseline, which does not count for the gain
    null["sparse_context_loss"] += 1.0
    targets = amounts_beside(pd.concat([own, null]), NULL)
    assert targets["document_id"].nunique() == 3
    assert targets["lead"].sum() / targets["gain"].sum() == pytest.approx(0.6)


def test_length_losses_weigh_documents_by_their_targets() -> None:
    losses = pd.DataFrame(
        {
            "model": "m",
            "document_id": ["a", "b", "b", "a", "b", "b"],
            "chunk_index": [0, 0, 1, 0, 0, 1],  # several chunks of a document are not several documents
            "context_length": [16, 16, 16, 32, 32, 32],
            "num_targets": [1, 1, 2, 1, 1, 2],
            "mean_loss": [4.0, 3.0, 1.5, 3.0, 1.0, 2.5],
        }
    )
    table = losses_by_context_length(losses).set_index("context_length")
    assert table["loss"].to_dict() == {16: 2.5, 32: 2.25}
    assert (table["num_targets"].to_list(), table["num_documents"].to_list()) == ([4, 4], [2, 2])
    # A single model has no other to be compared with: its loss itself is drawn.
    label = ModelLabel("m", solid(BLACK), "", None)
    figure = lengths_figure(table.reset_index(), {"m": label}, [], "m")
    assert figure.axes[0].lines[0].get_ydata().tolist() == [2.5, 2.25]


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
    plain = losses_by_context_length(losses).set_index("model")
    widths = [
        table.loc["b", f"{name}_high"] - table.loc["b", f"{name}_low"]
        for table, name in ((rows, "difference"), (plain, "loss"))
    ]
    assert 0 < widths[0] < 0.2 * widths[1]


def test_windows_by_hand() -> None:
    # Of 1 nat 16 tokens keep 0.5 and 32 keep 0.9: 0.7 lies halfway in log2 w.
    lengths_J = np.array([8, 16, 32, 64])
    values_XJ = np.array([[5.0, 4.5, 4.1, 4.0], [4.0, 3.9, 4.3, 4.0], [5.0, 3.9, 4.2, 4.0]])
    found = [windows_keeping(values_XJ, lengths_J, percent) for percent in (50, 70, 90, 95)]
    assert [values_X[0] for values_X in found] == pytest.approx([16, 2**4.5, 32, 2**5.5])
    assert all(np.isnan(values_X[1]) for values_X in found)  # 64 tokens are worth no more than 8
    assert [values_X[2] for values_X in found] == pytest.approx(  # more context harms: the first w counts
        [8 * 2 ** (share / 1.1) for share in (0.5, 0.7, 0.9, 0.95)]
    )


LONG = "long-seed0"


@pytest.fixture(scope="module")
def small(scales: tuple[Path, Any, Any]) -> Path:
    return scales[0] / "small"


@pytest.fixture(scope="module")
def labels(small: Path) -> dict[str, ModelLabel]:
    return model_labels(small, "loss_differences")


@pytest.fixture(scope="module")
def sparse(small: Path) -> pd.DataFrame:
    return read_sparse_losses(small)


def rows_of(table: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    for name, value in wanted.items():
        table = table[table[name] == value]
    return table


def assert_drawn(ax: Axes, index: int, rows: pd.DataFrame, value: str) -> Line2D:
    """The index-th line with bars is this column rows_of the rows, with its interval."""
    line, _, (bars,) = ax.containers[index]
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), rows[value].astype(float))
    np.testing.assert_allclose(ends, rows[[f"{value}_low", f"{value}_high"]])
    return line


def test_any_name_is_drawn_as_it_is(tmp_path: Path) -> None:
    figure, (ax,) = drawing.panels(1, 2)
    name = "a$x_{1$b"
    drawing.draw_line(ax, [1, 2], pd.DataFrame({"loss": [1.0, 2.0]}), "loss", drawing.solid("red"), name)
    ax.set_title(name)
    drawing.put_title(figure, name, name)
    drawing.save(figure, tmp_path, "figure")
    assert {text.get_text() for text in ax.texts} == {name} and (tmp_path / "figure.pdf").exists()


def test_the_paper_figure_is_its_table(sparse: pd.DataFrame, labels: dict[str, ModelLabel]) -> None:
    curves = recovered_loss.loss_curves(rows_of(sparse, model=LONG))
    figure = recovered_loss.loss_figure(curves, labels[LONG], "another model")
    (ax,) = figure.axes
    own, *_ = (
        assert_drawn(ax, index, rows_of(curves, rule=rule, distant_context="own"), "loss")
        for index, rule in enumerate(("leave_one_out", "recency", "random"))
    )
    null = assert_drawn(
        ax, 3, rows_of(curves, rule="leave_one_out", distant_context="other_document"), "loss"
    )
    assert null.get_color() == own.get_color() == drawing.rule_style("leave_one_out")["color"]
    assert (null.get_linestyle(), own.get_linestyle()) == ("--", "-")
    assert_drawn(ax, 4, curves[:1], "long_loss")  # all distant tokens
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", *map(str, KS), "all"]
    of_model = rows_of(sparse, model=LONG, rule="recency", distant_context="own", k=1)
    short, long = of_model[["short_context_loss", "long_context_loss"]].astype("float64").mean()
    share = rows_of(curves, rule="leave_one_out", distant_context="own", k=16)["recovered_share"]
    expected = {f"selected, target-aware: {share.iloc[0]:.0%}", f"full context, {long:.2f}"}
    assert {*expected, f"short context, {short:.2f}"} <= {text.get_text() for text in ax.texts}
