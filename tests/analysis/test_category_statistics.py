"""Statistics by category against means taken by hand, and their figure against what it is drawn from."""

from pathlib import Path

import pandas as pd
import pytest
from legible_figures import assert_legible

from analysis.drawing import model_labels
from analysis.gap.gaps import NO_GAIN
from analysis.losses.losses import summarize_models
from analysis.read import TARGET
from analysis.tokens import kinds as category_figures
from analysis.tokens import kinds as category_statistics
from analysis.tokens.kinds import ASPECTS

KS = [1, 4]
PLACES = [(document, position) for document in ("aa", "bb", "cc") for position in (9, 10, 11)]
# Kind, k*, gain, what 1 token recovers beyond the null, and gap of the three targets of each document.
KINDS = ["number", "content word", "content word"]
K_STARS = [1, 4, None]
GAINS, EXCESSES, GAPS = [0.5, 0.25, -0.5], [0.125, 0.0, 0.25], [1.0, 2.0, 4.0]


def targets(**columns: list) -> pd.DataFrame:
    """A row a target, document by document; a column of 3 is the same for each document."""
    frame = pd.DataFrame(PLACES, columns=["document_id", "target_position"]).assign(chunk_index=0)
    return frame.assign(**{name: values * 3 for name, values in columns.items()})


@pytest.fixture
def categories() -> pd.DataFrame:
    return targets(
        word_kind=KINDS, word_part=["word start"] * 3, repetition=["new"] * 3, part_of_speech=[None] * 3
    )


@pytest.fixture
def loss_differences() -> pd.DataFrame:
    long = targets(
        model=["long"] * 3, loss_difference=GAINS, short_context_loss=[3 + gain for gain in GAINS],
        long_context_loss=[3.0] * 3,
    )  # fmt: skip
    short = long.assign(model="short", long_context_loss=[3 + gap for gap in GAPS] * 3)
    return pd.concat([long, short], ignore_index=True)


@pytest.fixture
def sparse_context_losses() -> pd.DataFrame:
    tables = []
    for far_context, recovered in (("own", EXCESSES), ("other_document", [0.0] * 3)):
        tables.append(
            targets(
                model=["long"] * 3, rule=["leave_one_out"] * 3, far_context=[far_context] * 3, k=[1] * 3,
                short_context_loss=[3 + gain for gain in GAINS], long_context_loss=[3.0] * 3,
                sparse_context_loss=[3 + gain - nats for gain, nats in zip(GAINS, recovered, strict=True)],
            )
        )  # fmt: skip
    return pd.concat(tables, ignore_index=True)


@pytest.fixture
def dependency_sparsity() -> pd.DataFrame:
    return targets(
        model=["long"] * 3, rule=["leave_one_out"] * 3, dependency_sparsity=K_STARS, is_censored=[False] * 3
    )


def of(table: pd.DataFrame, category: str, column: str) -> list:
    return table.loc[table["category"] == category, column].tolist()


def test_gaps_where_copying_foretells_the_target_and_elsewhere(
    loss_differences: pd.DataFrame, categories: pd.DataFrame
) -> None:
    divergences = {"short": [0.5, 1.0, 2.0], "long": [0.25, 0.5, 0.0]}
    measured = pd.concat(
        loss_differences[loss_differences["model"] == model].assign(reference_divergence=of_three * 3)
        for model, of_three in divergences.items()
    )
    kinds = categories.assign(repetition=["repeated bigram", "new", "repeated trigram"] * 3)
    gaps = category_statistics.gaps_by_repeats(measured, kinds, short_models=["short"], floor_model="long")
    repeats, others = gaps.to_dict("records")
    assert [repeats["kind"], others["kind"]] == ["ends of repeats", "all other tokens"]
    assert [repeats["num_targets"], others["num_targets"]] == [6, 3]
    assert [repeats["generalization_gap"], others["generalization_gap"]] == [(GAPS[0] + GAPS[2]) / 2, GAPS[1]]
    assert [repeats["expected_gap"], others["expected_gap"]] == [(0.25 + 2.0) / 2, 0.5]


def test_means_by_hand(
    loss_differences: pd.DataFrame, sparse_context_losses: pd.DataFrame, categories: pd.DataFrame
) -> None:
    long = loss_differences[loss_differences["model"] == "long"]
    gains = category_statistics.loss_differences_by_category(long, categories)
    assert gains["category"].tolist() == ["word start", "content word", "number", "new"]
    assert of(gains, "number", "loss_difference") == [0.5]
    assert of(gains, "content word", "loss_difference") == [(0.25 - 0.5) / 2]
    assert of(gains, "content word", "num_targets") == [6]
    assert of(gains, "content word", "num_documents") == [3]
    excess = category_statistics.excess_by_category(sparse_context_losses, categories)
    assert of(excess, "number", "excess_loss") == [0.125]
    assert of(excess, "content word", "excess_loss") == [0.125]
    gaps = category_statistics.gaps_by_category(
        loss_differences, categories, short_models=["short"], reference_model="long"
    )
    assert of(gaps, "number", "generalization_gap") == [1]
    assert of(gaps, "content word", "generalization_gap_high") == [3]


def test_shares_of_k_star_by_hand(dependency_sparsity: pd.DataFrame, categories: pd.DataFrame) -> None:
    shares = category_statistics.sparsity_by_category(dependency_sparsity, categories, KS)
    assert of(shares, "number", "k_star") == ["1", "4", "more than 4", NO_GAIN]
    assert of(shares, "number", "share") == [1, 0, 0, 0]
    assert of(shares, "content word", "share") == [0, 0.5, 0, 0.5]
    assert of(shares, "new", "share") == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])


def test_intervals_are_over_documents(categories: pd.DataFrame) -> None:
    # Two documents of ten targets each, all 0 or all 1: only documents vary.
    frame = pd.DataFrame({"document_id": ["aa"] * 10 + ["bb"] * 10, "target_position": range(20)}).assign(
        chunk_index=0, model="m", loss_difference=[0.0] * 10 + [1.0] * 10, short_context_loss=1.0,
        long_context_loss=1.0,
    )  # fmt: skip
    kinds = frame[TARGET].assign(word_kind="number", word_part=None, repetition=None, part_of_speech=None)
    table = category_statistics.loss_differences_by_category(frame, kinds)
    row = table.iloc[0]
    assert len(table) == 1
    interval = row["loss_difference_low"], row["loss_difference_high"]
    assert (row["loss_difference"], *interval) == pytest.approx((0.5, (1 - 12.7062) / 2, (1 + 12.7062) / 2))


def gains_of(loss_differences: pd.DataFrame, categories: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """The table of the figure, and its row of all targets."""
    long = loss_differences[loss_differences["model"] == "long"]
    overall = summarize_models(long).iloc[0]
    table = category_statistics.loss_differences_by_category(long, categories)
    return category_statistics.with_shares(table, overall), overall


def test_shares_of_targets_and_of_the_gain_by_hand(
    loss_differences: pd.DataFrame, categories: pd.DataFrame
) -> None:
    table, _ = gains_of(loss_differences, categories)
    # Gains of 0.5, 0.25 and -0.5 sum to 0.25 a document; the number has 0.5 of them.
    assert of(table, "number", "share_of_targets") == pytest.approx([1 / 3])
    assert of(table, "number", "share_of_gain") == pytest.approx([2])
    assert of(table, "content word", "share_of_gain") == pytest.approx([-1])


def ten_kinds(num_targets: int = 40) -> pd.DataFrame:
    """A row a kind, in another order than the figure's; the repeated trigrams have all of the gain."""
    rows = [
        {
            "aspect": aspect, "category": category, "num_targets": num_targets, "num_documents": 9,
            "loss_difference": gain, "loss_difference_low": gain - 0.1, "loss_difference_high": gain + 0.1,
            "share_of_targets": 0.1, "share_of_gain": gain / 2,
        }
        for (aspect, category) in reversed(category_figures.KINDS)
        for gain in [2.0 if category == "repeated trigram" else 0.0]
    ]  # fmt: skip
    return pd.DataFrame(rows)


OVERALL = pd.Series(
    {"loss_difference": 0.4, "loss_difference_low": 0.3, "loss_difference_high": 0.5, "num_targets": 400,
     "num_documents": 9},
)  # fmt: skip


def test_ten_kinds_are_drawn_in_order_and_none_of_few_targets() -> None:
    kinds = category_figures.kinds_of(pd.concat([ten_kinds(), ten_kinds().assign(aspect="part_of_speech")]))
    assert kinds["words"].tolist() == list(category_figures.KINDS.values()) and len(kinds) == 10
    assert category_figures.kinds_of(ten_kinds(num_targets=29)).empty


def test_the_figure_of_kinds_draws_each_number_and_can_be_read(results: Path) -> None:
    role = model_labels(results, "loss_differences")["long-seed0"]
    kinds = category_figures.kinds_of(ten_kinds())
    figure = category_figures.kinds_figure(kinds, OVERALL, role)
    points = [container.lines[0].get_xdata()[0] for container in figure.axes[0].containers]
    assert points == kinds["loss_difference"].tolist()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][:1] == [
        "ends of repeated trigrams (40)"
    ]
    assert_legible(figure)


def test_aspects_without_rows_are_left_out(loss_differences: pd.DataFrame, categories: pd.DataFrame) -> None:
    assert "part_of_speech" in ASPECTS
    table = category_statistics.loss_differences_by_category(loss_differences, categories)
    assert "part_of_speech" not in set(table["aspect"])
    none = category_statistics.loss_differences_by_category(loss_differences.iloc[:0], categories)
    assert none.empty
