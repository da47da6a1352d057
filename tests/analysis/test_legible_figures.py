"""The checker finds what it is for; titles, names of lines and looks are as every figure needs them."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible, drawn_texts, legibility_faults
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.optimize import minimize
from synthetic_results import write_results

from analysis import drawing as palette
from analysis import drawing as titles
from analysis.drawing import (
    LineEnd,
    label_line_ends,
    model_roles,
    moved_apart,
    name_level,
    name_place,
    panels,
    put_title,
    rule_words,
    size_words,
)
from pipeline.measuring.rules import RULES

LONG_TITLE = (
    "4 of some 230 far tokens carry 65 % of what the far context is worth, and the nearest 16 carry 34 %"
)


def good_figure() -> tuple[Figure, Axes]:
    figure, (ax, other) = panels(1, 2, 7.0, 2.6)
    ax.plot([1, 2], [0.1, 0.5], color=palette.BLUE)
    ax.set(xlabel="k tokens", ylabel="worth (nats)")
    other.plot([1, 2], [0, 1])
    other.set(xlabel="k tokens", ylabel="share")
    name_level(ax, 0.3, "the whole gain")
    name_place(other, 1.5, "trained at 64")
    ends = [LineEnd(2, 0.50, "chosen", palette.BLUE), LineEnd(2, 0.49, "their null", palette.SKY)]
    label_line_ends(ax, ends)
    put_title(figure, LONG_TITLE, "n = 2,560 targets, 160 documents; bars: 95 % over documents")
    return figure, ax


def test_a_figure_of_the_framework_has_no_fault() -> None:
    assert_legible(good_figure()[0])


PLANTED: dict[str, Callable[[Figure, Axes], object]] = {
    "touches 'planted'": lambda figure, ax: [figure.text(0.3, 0.3, "planted") for _ in range(2)],
    "'planted' leaves the canvas": lambda figure, ax: figure.text(0.99, 0.5, "planted"),
    "'planted' is of 6 points": lambda figure, ax: figure.text(0.3, 0.3, "planted", fontsize=6),
    "'leave_one_out' is no words": lambda figure, ax: ax.set_ylabel("leave_one_out"),
    "'2m-long-seed0' is no words": lambda figure, ax: ax.set_ylabel("2m-long-seed0"),
    "it has 2 titles": lambda figure, ax: put_title(figure, "again", "n = 1"),
    "does not tell n": lambda figure, ax: (
        drawn_texts(figure)[-1].set_text("no number")
        or [text.set_text("no number") for text in figure.texts if text.get_gid() == "subtitle"]
    ),
    "a legend lies on the data of panel 0": lambda figure, ax: ax.legend(["line"]),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str) -> None:
    figure, ax = good_figure()
    PLANTED[fault](figure, ax)
    assert any(fault in found for found in legibility_faults(figure))
    plt.close(figure)


def test_a_figure_without_a_title_is_found() -> None:
    figure, ax = panels()
    ax.plot([0, 1])
    assert legibility_faults(figure) == ["it has 0 titles", "it has 0 subtitles"]
    plt.close(figure)


def test_panels_keep_their_height_under_a_title() -> None:
    heights = []
    for title in ("short", LONG_TITLE * 2):
        figure, ax = panels(1, 1, 3.4, 2.6)
        put_title(figure, title, "n = 1")
        figure.canvas.draw()
        heights.append(ax.bbox.height / figure.dpi)
        plt.close(figure)
    assert heights[0] == pytest.approx(heights[1], abs=0.02)


@pytest.mark.parametrize("num_letters", range(1, 30, 4))  # so that the line is full at several places
def test_lines_of_titles_do_not_begin_with_a_percent_sign_and_fit_as_saved(num_letters: int) -> None:
    figure, _ = panels(1, 1, 7.0, 1.0)
    words = f"{'i' * num_letters} tokens of context; 2.3 M parameters" + "; more than 95 % over documents" * 4
    put_title(figure, words, words)
    figure.set_dpi(200)  # as `save` does
    figure.canvas.draw()
    for text in figure.texts:
        lines = text.get_text().split("\n")
        assert len(lines) > 1 and not any(line.startswith("%") for line in lines)
        assert text.get_window_extent().x1 <= figure.bbox.x1
    plt.close(figure)


@pytest.mark.parametrize("seed", range(5))
def test_names_move_apart_as_little_as_may_be(seed: int) -> None:
    generator = np.random.default_rng(seed)
    places, heights = np.sort(generator.uniform(2, 8, 6)), generator.uniform(0.5, 1.5, 6)
    gaps = (heights[1:] + heights[:-1]) / 2
    moved = moved_apart(places, heights.tolist(), -20, 30)
    constraint = {"type": "ineq", "fun": lambda tried: np.diff(tried) - gaps}
    best = minimize(lambda tried: ((tried - places) ** 2).sum(), places, constraints=constraint, tol=1e-12)
    np.testing.assert_allclose(moved, best.x, atol=1e-4)
    within = moved_apart(places, heights.tolist(), 0, heights.sum())
    assert within[0] - heights[0] / 2 == pytest.approx(0)
    assert within[-1] + heights[-1] / 2 == pytest.approx(heights.sum())


def test_no_two_roles_look_alike_and_each_can_be_hollow() -> None:
    looks = [
        *palette.RULE_LOOKS.values(), palette.TRAINED_LONG, palette.TRAINED_POSE, palette.TRAINED_CONTIGUOUS,
        *palette.OTHER_MODELS, palette.POSITION_LOOKS["coupled"], palette.POSITION_LOOKS["predicted"],
        palette.POSITION_LOOKS["randomized"],
    ]  # fmt: skip
    assert [pair for pair in combinations(looks, 2) if pair[0] == pair[1]] == []
    assert {look.marker for look in looks} <= set(Line2D.filled_markers)
    of_models = {
        look.color for look in (palette.TRAINED_LONG, palette.TRAINED_POSE, palette.TRAINED_CONTIGUOUS)
    }
    of_rules = {look.color for look in palette.RULE_LOOKS.values()}
    assert not of_models & of_rules
    assert palette.POSITION_LOOKS["pose"] is palette.TRAINED_POSE
    assert set(palette.RULE_LOOKS) == set(RULES)


def test_ink_is_read_on_white_and_keeps_the_hue() -> None:
    assert palette.ink(palette.BLUE) == palette.BLUE.lower()
    for color in (palette.YELLOW, palette.SKY, palette.ORANGE):
        assert palette._contrast_with_white(np.array(palette.to_rgb(palette.ink(color)))) >= 4.5
    assert palette._contrast_with_white(np.zeros(3)) == pytest.approx(21)


def test_roles_come_from_what_results_tell(tmp_path: Path) -> None:
    write_results(tmp_path, num_documents=2, scale=(460_000, 100))
    roles = model_roles(tmp_path, "loss_differences")
    assert {model: (role.words, role.look) for model, role in roles.items()} == {
        "long-seed0": ("trained at 256, seed 0", palette.TRAINED_LONG),
        "long-seed1": ("trained at 256, seed 1", palette.TRAINED_LONG),
        "short-contiguous": ("trained at 32", palette.TRAINED_CONTIGUOUS),
        "short-pose": ("trained at 32, PoSE", palette.TRAINED_POSE),
    }
    assert {size_words(role.num_parameters) for role in roles.values()} == {"0.46 M parameters"}


def test_results_that_do_not_tell_have_looks_of_their_own(results: Path) -> None:
    roles = model_roles(results, "loss_differences")
    looks = [role.look for role in roles.values()]
    assert len(set(looks)) == 4
    assert set(looks) == set(palette.OTHER_MODELS)
    assert (roles["short-pose"].words, roles["long-seed0"].words) == ("short pose", "long, seed 0")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("leave_one_out", "leave one out"),
        ("leave_one_out_divergence", "leave one out, by divergence"),
        ("nearest", "nearest tokens"),
        ("a_new_rule", "a new rule"),
    ],
)
def test_rules_in_words(rule: str, words: str) -> None:
    assert rule_words(rule) == words


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [
        (0.1, 0.2, True, False),
        (-0.1, 0.2, False, False),
        (-0.2, -0.1, False, True),
        (np.nan, np.nan, False, False),
    ],
)
def test_an_interval_supports_a_side_of_zero(low: float, high: float, above: bool, below: bool) -> None:
    assert (titles.is_above(low), titles.is_below(high)) == (above, below)


def test_intervals_lie_apart_only_where_they_do_not_touch() -> None:
    assert titles.lie_apart((0, 1), (1.1, 2))
    assert titles.lie_apart((1.1, 2), (0, 1))
    assert not titles.lie_apart((0, 1), (0.9, 2))
    assert not titles.lie_apart((np.nan, 1), (np.nan, 2))


def test_words_of_numbers() -> None:
    assert (titles.percent(0.654), titles.counted(1, "token"), titles.counted(2560, "target")) == (
        "65 %", "1 token", "2,560 targets",
    )  # fmt: skip
    rows = pd.DataFrame({"num_targets": [30, 1234], "num_documents": [3, 3]})
    assert titles.subtitle(titles.sample_size(rows), "", titles.BARS) == (
        "n = 30 to 1,234 targets, 3 documents; bars: 95 % over documents"
    )
