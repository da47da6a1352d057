"""Statistics by category against means taken by hand, and their figure against what it is drawn from."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from analysis.generalization.sparsity_classes import NO_GAIN
from analysis.paired_targets import TARGET
from analysis.tokens import category_figures, category_statistics
from analysis.tokens.token_categories import ASPECTS

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


def test_the_sentence_tells_what_the_table_holds(
    loss_differences: pd.DataFrame, categories: pd.DataFrame
) -> None:
    long = loss_differences[loss_differences["model"] == "long"]
    gains = category_statistics.loss_differences_by_category(long, categories)
    assert category_statistics.extremes(gains, "loss_difference") == (
        "word_kind: largest for number 0.500 [0.500, 0.500] nats (n = 3), smallest for content word"
        " -0.125 [-0.125, -0.125] nats (n = 6); the ends of 2 categories, their intervals apart."
    )
    noisy = gains.assign(loss_difference_low=-1.0, loss_difference_high=1.0)
    assert "their intervals not clearly apart" in category_statistics.extremes(noisy, "loss_difference")


def test_the_figure_draws_each_number(
    loss_differences: pd.DataFrame, dependency_sparsity: pd.DataFrame, categories: pd.DataFrame, ax: Axes
) -> None:
    gains = category_statistics.loss_differences_by_category(loss_differences, categories)
    category_figures.means_by_category(gains, "loss_difference", "nats", ax)
    category_figures.label_categories(gains, ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "word start (9)", "content word (6)", "number (3)", "new (9)",
    ]  # fmt: skip
    means = [container.lines[0].get_xdata().tolist() for container in ax.containers]
    assert means == [
        gains.loc[gains["model"] == model, "loss_difference"].tolist() for model in ("long", "short")
    ]
    heights = category_figures.rows_of_categories(gains)
    assert len(set(heights.values())) == 4 and max(heights.values()) == 0


def test_the_parts_of_a_bar_are_the_shares(
    dependency_sparsity: pd.DataFrame, categories: pd.DataFrame, ax: Axes
) -> None:
    shares = category_statistics.sparsity_by_category(dependency_sparsity, categories, KS)
    category_figures.sparsity_shares(shares, ax)
    colors = category_figures.sparsity_colors(shares)
    assert len({to_hex(color) for color in colors.values()}) == 4
    widths = [patch.get_width() for patch in ax.patches]
    assert widths == pytest.approx(shares["share"].tolist())
    ends = [patch.get_x() + patch.get_width() for patch in ax.patches]
    assert np.allclose(ends[3::4], 1)


def test_aspects_without_rows_are_left_out(loss_differences: pd.DataFrame, categories: pd.DataFrame) -> None:
    assert "part_of_speech" in ASPECTS
    table = category_statistics.loss_differences_by_category(loss_differences, categories)
    assert "part_of_speech" not in set(table["aspect"])
    none = category_statistics.loss_differences_by_category(loss_differences.iloc[:0], categories)
    assert none.empty
