"""The errors of sparse functional attention beyond its training lengths, beside what the theory bounds.

Words: L the longest training length, L̄ (`test_length`) a test length, delta (`in_distribution_error`) the
mean squared error over the lengths of training, all of one fit after one training step. The bounds are
upper bounds up to constants that our sources do not state; here the constants, and the published bound's
eta (at least 1), are taken as 1. So slopes can be compared with them, and heights cannot.

An interval is the range over seeds. The median over all seeds lies within the range of n of them with
probability 1 - 2^(1-n), whatever the distribution: 75 % for three, 97 % for six.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import drawing
from analysis.read import interval_columns, joined_on_common, warn_of_left_out
from pipeline.results.statistics import Interval

FIT = ["model", "seed", "training_step"]


def with_bounds(errors: pd.DataFrame) -> pd.DataFrame:
    """The artefact with delta and both bounds in each row.

    Returns:
        The rows, with in_distribution_error (delta), length_ratio (L̄ / L), improved_bound
        ((L̄ / L)^2 delta) and published_bound (L L̄^2 delta).
    """
    is_trained = errors["test_length"] <= errors["train_context_length"]
    deltas = errors[is_trained].groupby(FIT)["squared_error"].mean().rename("in_distribution_error")
    rows = joined_on_common(errors, deltas.reset_index(), FIT, "fits with and without a length of training")
    train, test, delta = (
        rows[name].astype("float64")
        for name in ("train_context_length", "test_length", "in_distribution_error")
    )
    rows["length_ratio"] = test / train
    rows["improved_bound"] = (test / train) ** 2 * delta
    rows["published_bound"] = train * test**2 * delta
    return rows


def after_training(fits: pd.DataFrame) -> pd.DataFrame:
    """The rows of each fit's last measured step."""
    return fits[fits["training_step"] == fits.groupby("model")["training_step"].transform("max")]


def errors_by_length(fits: pd.DataFrame) -> pd.DataFrame:
    """After training, a row a model and test length.

    Returns:
        model, test_length, length_ratio, then with the range over seeds squared_error and error_rate;
        improved_bound, published_bound (medians).
    """
    rows = []
    for (model, test_length), group in after_training(fits).groupby(["model", "test_length"]):
        medians = group[["length_ratio", "improved_bound", "published_bound"]].median().to_dict()
        ranges = _range_columns(group[["squared_error", "error_rate"]])
        rows.append({"model": model, "test_length": test_length} | medians | ranges)
    return pd.DataFrame(rows)


def summarize_conditions(fits: pd.DataFrame) -> pd.DataFrame:
    """A row a model: its error in distribution and at the longest test length, and how it got there.

    Returns:
        model, num_seeds, length_ratio (of the longest test length), then with the range over seeds
        in_distribution_error, squared_error, error_rate (both at the longest test length), growth_exponent
        (p where the squared error grows as L̄^p from L to there; the improved bound's is 2),
        error_over_improved_bound, and delta_exponent (q where, between the last two measured steps of the
        training, the error there falls as delta^q; the bounds' is 1, and an error near 1 cannot show it).
    """
    rows = []
    for model, of_model in fits.groupby("model"):
        measured = _a_row_a_seed(of_model)
        ratio = of_model["length_ratio"].max()
        about = {"model": model, "num_seeds": len(measured), "length_ratio": ratio}
        rows.append(about | _range_columns(measured))
    return pd.DataFrame(rows)


def _range_columns(values: pd.DataFrame) -> dict[Hashable, Any]:
    """The median over seeds, with the least and the largest."""
    columns: dict[Hashable, Any] = {}
    for name, of_seeds in values.items():
        interval = Interval(float(of_seeds.median()), float(of_seeds.min()), float(of_seeds.max()))
        columns |= interval_columns(str(name), interval)
    return columns


def _a_row_a_seed(of_model: pd.DataFrame) -> pd.DataFrame:
    """What `summarize_conditions` takes the range of; indexed by seed."""
    last = after_training(of_model)
    at_longest = last[last["test_length"] == last["test_length"].max()].set_index("seed")
    at_training = last[last["length_ratio"] == 1].set_index("seed")
    before_last = after_training(of_model[of_model["training_step"] < last["training_step"].iloc[0]])
    early = before_last[before_last["test_length"] == last["test_length"].max()].set_index("seed")
    seeds = [set(rows.index) for rows in (at_longest, at_training, early) if not rows.empty]
    of_any = set().union(*seeds)  # a ratio between two lengths or steps is of the seeds that have both
    num_left_out = len(of_any) - len(seeds[0].intersection(*seeds))
    warn_of_left_out(num_left_out, len(of_any), "seeds measured at every length and step")
    error, delta = at_longest["squared_error"], at_longest["in_distribution_error"]
    growth = np.log(error / at_training["squared_error"]) / np.log(at_longest["length_ratio"])
    falls = np.log(error / early["squared_error"]) / np.log(delta / early["in_distribution_error"])
    return pd.DataFrame(
        {
            "in_distribution_error": delta, "squared_error": error, "error_rate": at_longest["error_rate"],
            "growth_exponent": growth, "error_over_improved_bound": error / at_longest["improved_bound"],
            "delta_exponent": falls,
        }
    )  # fmt: skip


CASES = {
    "local": ("close together", drawing.Style(drawing.BLACK, "o")),
    "halves_coupled": ("far apart\nbut coupled", drawing.POSITION_STYLES["coupled"]),
    "halves_trained_keys": ("far apart\nand uncoupled", drawing.POSITION_STYLES["contiguous"]),
}
"""Where the deciding tokens stand, in words: the two cases of the theorems, and one that they leave out."""
_GUESSED = 0.5  # of labels -1 and 1
_FAILING = 0.01  # wrong answers, share; learnt is 0.99 right
_HEIGHT_OF_ROW = 2.1  # inches


def drawn_cases(by_length: pd.DataFrame) -> dict[str, tuple[str, drawing.Style]]:
    """Model -> its name in words and its look: those of `CASES`, or the first four where none of these is."""
    models = list(dict.fromkeys(by_length["model"]))
    named = {model: CASES[case] for case in CASES for model in models if _condition(model) == case}
    others = {
        model: (_condition(model).replace("_", " "), look)
        for model, look in zip(models, drawing.OTHER_MODELS, strict=False)
    }
    return named or others


def bounds_figure(by_length_of: Mapping[int, pd.DataFrame], seeds: str, num_sequences: int) -> Figure:
    """A column a k: above wrong answers, below the squared error and the bound, against the test length."""
    figure, axes = drawing.panels(len(by_length_of), 2 * _HEIGHT_OF_ROW, num_rows=2)
    axes = axes.reshape(2, -1)
    for (k, by_length), (rate_ax, error_ax) in zip(by_length_of.items(), axes.T, strict=True):
        rate_ends = against_length(by_length, "error_rate", rate_ax)
        rate_ax.set_ylim(-0.02, 0.62)
        drawing.name_level(rate_ax, _GUESSED, "guessing", side="left")
        error_ends = against_length(by_length, "squared_error", error_ax)
        error_ends += bound_against_length(by_length, error_ax)
        error_ax.set_yscale("log")
        rate_ax.set(title=f"k = {k}", xlabel="")
    axes[0, 0].set_ylabel("wrong answers (share)")
    axes[1, 0].set_ylabel("squared error")
    drawing.share_scale(axes[1])
    drawing.label_line_ends(axes[0, -1], rate_ends)
    drawing.label_line_ends(axes[1, -1], error_ends)
    drawing.put_title(
        figure, _where_answers_fail(by_length_of), "Sparse functional attention",
        f"n = {seeds}, {drawing.counted(num_sequences, 'sequence')} per length",
        "lines: medians; bands: range of seeds; grey: trained; the answer 0 has squared error 1",
        "a line that is not seen lies behind another",
    )  # fmt: skip
    return figure


def _where_answers_fail(by_length_of: Mapping[int, pd.DataFrame]) -> str:
    """The finding of `bounds_figure`: in which cases some seed is wrong at the longest length."""
    failing: dict[str, list[str]] = {}
    for k, by_length in by_length_of.items():
        longest = by_length[by_length["length_ratio"] == by_length["length_ratio"].max()].set_index("model")
        for model, (words, _) in drawn_cases(by_length).items():
            if longest.loc[model, "error_rate_high"] > _FAILING:
                failing.setdefault(words.replace("\n", " "), []).append(str(k))
    lengths = f"Of these cases, answers fail at {longest['length_ratio'].iloc[0]:g} times the training length"
    if not failing:
        return f"At {longest['length_ratio'].iloc[0]:g} times the training length answers hold in every case"
    cases = "; ".join(f"{words}, at k = {' and '.join(ks)}" for words, ks in failing.items())
    return f"{lengths} only where the deciding tokens are {cases}"


def against_length(by_length: pd.DataFrame, value: str, ax: Axes) -> list[drawing.LineEnd]:
    """A line a case from the shortest training length to the longest test length; what each is called."""
    ends = []
    for model, (words, look) in drawn_cases(by_length).items():
        line = by_length[by_length["model"] == model]
        style = look.measured | {"markersize": 3}
        ends.append(drawing.draw_line(ax, line["test_length"], line, value, style, words, band=True))
    train = by_length.loc[by_length["length_ratio"] == 1, "test_length"].iloc[0]
    ax.axvspan(by_length["test_length"].min(), train, color=drawing.GREY, alpha=0.12, linewidth=0)
    ticks = [train // 2, *sorted(set(by_length.loc[by_length["length_ratio"] >= 1, "test_length"]))]
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.tick_params(axis="x", which="minor", bottom=False)
    ax.set_xlabel("test length (tokens)")
    return ends


def bound_against_length(by_length: pd.DataFrame, ax: Axes) -> list[drawing.LineEnd]:
    """The improved bound of the case of Theorem 4.3, with its constant 1: compare slopes, not heights."""
    is_local = by_length["model"].map(_condition) == "local"
    line = by_length[is_local & (by_length["length_ratio"] >= 1)]
    if line.empty:
        return []
    ax.plot(line["test_length"], line["improved_bound"], color=drawing.GREY, linewidth=1, linestyle=":")
    bound = line["improved_bound"].iloc[-1]
    return [
        drawing.LineEnd(
            line["test_length"].iloc[-1],
            bound,
            "improved bound, close\ntogether (its constant: 1)",
            drawing.GREY,
        )
    ]


def _condition(model: str) -> str:
    return model.rpartition("-k")[0]
