"""The drawing of the theory's numerical check: tables of `analysis.synthetic.bound_scaling` in, a Figure out.

A line is a case in words, its median over seeds; its band is their range. The lengths of training are shaded.
"""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_texts import LineEnd, label_line_ends, name_level, put_title
from analysis.figures import TEXT_WIDTH, panels, share_scale
from analysis.palette import BLACK, GREY, OTHER_MODELS, POSITION_LOOKS, Look
from analysis.synthetic.bound_scaling import KEPT
from analysis.titles import counted, percent, subtitle

CASES = {
    "local": ("close together", Look(BLACK, "o")),
    "halves_coupled": ("far apart\nbut coupled", POSITION_LOOKS["coupled"]),
    "halves_trained_keys": ("far apart\nand uncoupled", POSITION_LOOKS["contiguous"]),
}
"""Where the deciding tokens stand, in words: the two cases of the theorems, and one that they leave out."""
_GUESSED = 0.5  # of labels -1 and 1
_HEIGHT, _HEIGHT_OF_ROW = 2.8, 2.1  # inches


def drawn_cases(by_length: pd.DataFrame) -> dict[str, tuple[str, Look]]:
    """Model -> its name in words and its look: those of `CASES`, or the first four where none of these is."""
    models = list(dict.fromkeys(by_length["model"]))
    named = {model: CASES[case] for case in CASES for model in models if _condition(model) == case}
    others = {
        model: (_condition(model).replace("_", " "), look)
        for model, look in zip(models, OTHER_MODELS, strict=False)
    }
    return named or others


def bound_scaling_title(by_length: pd.DataFrame) -> str:
    """Where answers stay right at the longest test length, and what is wrong elsewhere.

    It says what is shown where no case keeps its answers, or all do.

    Args:
        by_length: `bound_scaling.errors_by_length`, one k.
    """
    cases = drawn_cases(by_length)
    longest = by_length[by_length["test_length"] == by_length["test_length"].max()].set_index("model")
    kept = [model for model in cases if longest["error_rate_high"][model] < KEPT]
    lost = [model for model in cases if longest["error_rate_low"][model] > KEPT]
    if not kept or not lost:
        return "Wrong answers and squared error beyond the training lengths"
    words = {model: name.replace("\n", " ") for model, (name, _) in cases.items()}
    return (
        f"At {longest['length_ratio'].iloc[0]:.0f} times the training length answers hold for deciding tokens"
        f" {', or '.join(words[model] for model in kept)}; {', or '.join(words[model] for model in lost)},"
        f" {percent(longest['error_rate'][lost].max())} are wrong"
    )


def bound_scaling_figure(by_length: pd.DataFrame, seeds: str, num_sequences: int) -> Figure:
    """Two panels: wrong answers, and the squared error beside the bound, against the test length.

    Args:
        by_length: `bound_scaling.errors_by_length`, one k.
        seeds: how many the range is over, in words.
        num_sequences: a length.
    """
    figure, (rate_ax, error_ax) = panels(1, 2, TEXT_WIDTH, _HEIGHT)
    ends = against_length(by_length, "error_rate", rate_ax)
    rate_ax.set(ylim=(-0.02, 0.62), ylabel="wrong answers (share)")
    name_level(rate_ax, _GUESSED, "guessing", side="left")
    label_line_ends(rate_ax, ends)
    ends = against_length(by_length, "squared_error", error_ax)
    ends += bound_against_length(by_length, error_ax)
    error_ax.set(yscale="log", ylabel="squared error (1: always saying 0)")
    label_line_ends(error_ax, ends)
    sample = f"n = {seeds}, {counted(num_sequences, 'sequence')} a length"
    told = "lines: medians; bands: range of seeds; grey: trained"
    put_title(figure, bound_scaling_title(by_length), subtitle("Sparse functional attention", sample, told))
    return figure


def by_sparsity_title(by_length_of: Mapping[int, pd.DataFrame]) -> str:
    """At which k answers stay right at the longest test length, case by case.

    Args:
        by_length_of: k -> `bound_scaling.errors_by_length`.
    """
    kept_at: dict[str, list[int]] = {}
    times = 0.0
    for k, by_length in by_length_of.items():
        longest = by_length[by_length["test_length"] == by_length["test_length"].max()].set_index("model")
        times = longest["length_ratio"].iloc[0]
        for model, (words, _) in drawn_cases(by_length).items():
            kept_at.setdefault(words.replace("\n", " "), [])
            if longest["error_rate_high"][model] < KEPT:
                kept_at[words.replace("\n", " ")].append(k)
    groups: dict[tuple[int, ...], list[str]] = {}
    for words, ks in kept_at.items():
        groups.setdefault(tuple(ks), []).append(words)
    parts = [f"{', or '.join(cases)}, {_at(ks, list(by_length_of))}" for ks, cases in groups.items()]
    return f"At {times:.0f} times the training length answers hold for deciding tokens {'; '.join(parts)}"


def _at(kept: Sequence[int], asked: Sequence[int]) -> str:
    """At which k, in words."""
    if not kept:
        return "at no k"
    if list(kept) == list(asked):
        return f"at every k up to {max(asked)}"
    return f"at k = {' and '.join(map(str, kept))} only"


def by_sparsity_figure(by_length_of: Mapping[int, pd.DataFrame], seeds: str, num_sequences: int) -> Figure:
    """A column a k: above wrong answers, below the squared error beside the bound, against the test length.

    Args:
        by_length_of: k -> `bound_scaling.errors_by_length`, k ascending.
        seeds: how many, in words.
        num_sequences: a length.
    """
    figure, axes = panels(2, len(by_length_of), TEXT_WIDTH, 2 * _HEIGHT_OF_ROW)
    for (k, by_length), (rate_ax, error_ax) in zip(by_length_of.items(), axes.T, strict=True):
        rate_ends = against_length(by_length, "error_rate", rate_ax)
        rate_ax.set(ylim=(-0.02, 0.62), title=f"k = {k}", xlabel="")
        name_level(rate_ax, _GUESSED, "guessing", side="left")
        error_ends = against_length(by_length, "squared_error", error_ax)
        error_ends += bound_against_length(by_length, error_ax)
        error_ax.set(yscale="log")
    axes[0, 0].set_ylabel("wrong answers (share)")
    axes[1, 0].set_ylabel("squared error")
    share_scale(axes[1])
    label_line_ends(axes[0, -1], rate_ends)
    label_line_ends(axes[1, -1], error_ends)
    sample = f"n = {seeds}, {counted(num_sequences, 'sequence')} a length"
    told = "lines: medians; bands: range of seeds; grey: trained; saying 0 has error 1"
    title = by_sparsity_title(by_length_of)
    put_title(figure, title, subtitle("Sparse functional attention", sample, told))
    return figure


def against_length(by_length: pd.DataFrame, value: str, ax: Axes) -> list[LineEnd]:
    """A line a case from the shortest training length to the longest test length; what each is called.

    Args:
        by_length: `bound_scaling.errors_by_length`, one k.
        value: a column that has a range.
        ax: to draw on.
    """
    ends = []
    for model, (words, look) in drawn_cases(by_length).items():
        line = by_length[by_length["model"] == model]
        ax.plot(line["test_length"], line[value], **look.measured | {"markersize": 3})
        low, high = line[f"{value}_low"], line[f"{value}_high"]
        ax.fill_between(line["test_length"], low, high, color=look.color, alpha=0.15, linewidth=0)
        ends.append(LineEnd(line["test_length"].iloc[-1], line[value].iloc[-1], words, look.color))
    train = by_length.loc[by_length["length_ratio"] == 1, "test_length"].iloc[0]
    ax.axvspan(by_length["test_length"].min(), train, color=GREY, alpha=0.12, linewidth=0)
    ticks = [train // 2, *sorted(set(by_length.loc[by_length["length_ratio"] >= 1, "test_length"]))]
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.tick_params(axis="x", which="minor", bottom=False)
    ax.set_xlabel("test length (tokens)")
    return ends


def bound_against_length(by_length: pd.DataFrame, ax: Axes) -> list[LineEnd]:
    """The improved bound of the case of Theorem 4.3, with its constant 1: compare slopes, not heights.

    Args:
        by_length: `bound_scaling.errors_by_length`, one k.
        ax: to draw on.
    """
    is_local = by_length["model"].map(_condition) == "local"
    line = by_length[is_local & (by_length["length_ratio"] >= 1)]
    if line.empty:
        return []
    ax.plot(line["test_length"], line["improved_bound"], color=GREY, linewidth=1, linestyle=":")
    bound = line["improved_bound"].iloc[-1]
    return [
        LineEnd(line["test_length"].iloc[-1], bound, "bound, close together\n(constant taken as 1)", GREY)
    ]


def _condition(model: str) -> str:
    return model.rpartition("-k")[0]
