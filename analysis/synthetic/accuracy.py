"""Accuracy on synthetic tasks over seeds: small tables of `synthetic_accuracy`, for the figures.

A cell is what models of one training are tested on: task, positions, K_train, size and k. Three seeds bear no
interval, so the range over the seeds stands beside the mean.

Figures of the synthetic tasks: tables of `analysis.synthetic.accuracy` in, a Figure out.

A line is the mean over seeds, its band their range; the sizes of training are shaded. What is not learnt in
distribution by every seed shows nothing beyond it: it is drawn thin and grey, and named so.
"""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.drawing import (
    GREY,
    POSITION_STYLES,
    LineEnd,
    Style,
    counted,
    counted_seeds,
    graded,
    label_line_ends,
    lie_apart,
    name_level,
    panels,
    put_title,
)

TRAINING = ["task", "positions", "largest_train_size", "largest_train_sparsity"]
"""What the seeds of one training share."""
SOLVED = 0.9


def over_seeds(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Mean exact match of every cell, and its range over the seeds.

    Args:
        accuracy: `synthetic_accuracy` as `read_artefact` reads it.

    Returns:
        A row a cell, ascending, with `exact_match`, `lowest`, `highest`, `num_seeds` and `is_learnt`: whether
        every seed had learnt the task in distribution.
    """
    cells = accuracy.groupby([*TRAINING, "sparsity", "size"], dropna=False)
    return cells.agg(
        exact_match=("exact_match", "mean"),
        lowest=("exact_match", "min"),
        highest=("exact_match", "max"),
        num_seeds=("seed", "nunique"),
        is_learnt=("is_learnt", "all"),
    ).reset_index()


def largest_solved_sizes(cells: pd.DataFrame, threshold: float = SOLVED) -> pd.DataFrame:
    """The largest tested size up to which every tested size is solved, for each training and k.

    Args:
        cells: of `over_seeds`.
        threshold: the mean exact match from which on a size is solved.

    Returns:
        A row a training and k with `largest_solved_size`; null where the smallest is not solved.
    """
    rows = []
    for names, of_one in cells.groupby([*TRAINING, "sparsity"], dropna=False):
        ascending = of_one.sort_values("size")
        is_solved = (ascending["exact_match"] >= threshold).cummin()
        sizes = ascending["size"][is_solved]
        largest = pd.NA if sizes.empty else int(sizes.iloc[-1])
        rows.append([*names, largest])
    table = pd.DataFrame(rows, columns=[*TRAINING, "sparsity", "largest_solved_size"])
    return table.astype({"largest_solved_size": "Int64"})


def sample_size(cells: pd.DataFrame, num_examples: int) -> str:
    """Of how many seeds and examples the numbers are, for a caption."""
    return f"n = {counted_seeds(cells)} a training, {num_examples:,} examples a size"


def verdicts(cells: pd.DataFrame) -> list[str]:
    """A sentence a training and k: up to which multiple of its training size it is solved.

    Args:
        cells: of `over_seeds`.
    """
    solved = largest_solved_sizes(cells)
    is_learnt = cells.groupby([*TRAINING, "sparsity"], dropna=False)["is_learnt"].all()
    return [
        _verdict(row, bool(learnt))
        for (_, row), learnt in zip(solved.iterrows(), is_learnt, strict=True)  # both in the groups' order
    ]


def _verdict(row: "pd.Series[Any]", is_learnt: bool) -> str:
    trained, largest = int(row["largest_train_size"]), row["largest_solved_size"]
    with_k = "" if pd.isna(row["sparsity"]) else f", k = {int(row['sparsity'])}"
    with_training = "" if not with_k else f" with k up to {int(row['largest_train_sparsity'])}"
    name = f"{row['task']}, {row['positions']}{with_k}"
    if not is_learnt:
        return f"{name}: not learnt in distribution by every seed, so its accuracy beyond shows nothing."
    trained_on = f"{name}, trained up to size {trained}{with_training}"
    if pd.isna(largest):
        return f"{trained_on}: not {SOLVED:.0%} of the examples of any tested size are solved."
    times = largest / trained
    return (
        f"{trained_on}: {SOLVED:.0%} of the examples are solved up to size {largest}, {times:.1f} times that."
    )


POSITION_WORDS = {
    "predicted": "predicted position IDs (PPC)", "coupled": "position IDs given", "pose": "PoSE",
    "randomized": "randomized positions", "contiguous": "contiguous positions",
}  # fmt: skip
"""Scheme -> its name in figures; the figure of positions draws the first two that learn a task."""
GUESSED = {"sparse_parity": 0.5, "planted_correlation": 0.5}
"""Exact match of guessing, where the answer is one of two."""
DECIDING = {"planted_correlation": "planted token"}
"""What k counts in a task; bits elsewhere."""
TOLD_APART = 0.05
"""Between ranges of seeds, for a title to speak of it: one seed's share is known to 0.01 to 0.04 itself."""
_MOST_PANELS, _HEIGHT = 2, 2.8  # inches
_MARKERS = "osD^vPX*"  # of tasks, whose colour is their scheme's; of k, whose colours are graded
_BANDS, _EXACT_MATCH = "bands: range of seeds", "exact match (share)"
_BOTTOM, _BELOW_GUESSING = -0.03, 0.35  # of the axis: of all shares, and where none falls far below guessing


def task_words(task: str) -> str:
    """A task's name in figures."""
    return {"parity_scratchpad": "parity with scratchpad"}.get(task, task.replace("_", " "))


def positions_title(cells: pd.DataFrame) -> str:
    """How far the best scheme's tasks are solved, and which schemes learn none.

    Args:
        cells: of `over_seeds`, tasks without a k.
    """
    shown, unlearnt = _schemes(cells)
    if not shown:
        return "No task is learnt in distribution, so that larger sizes show nothing"
    of_scheme = cells[cells["positions"] == shown[0]]
    solved = largest_solved_sizes(of_scheme)
    times = (solved["largest_solved_size"] / solved["largest_train_size"]).astype("float64")
    times = times[_is_learnt(of_scheme).reindex(solved["task"]).to_numpy() & (times > 1).to_numpy()]
    tail = f"; with {' or '.join(POSITION_WORDS[scheme] for scheme in unlearnt)} none is learnt"
    name = f"With {POSITION_WORDS[shown[0]]}"
    number = f"{len(times) or 'none'} of {len(solved)} tasks"
    ends = " to ".join(dict.fromkeys(f"{end:.1f}" for end in (times.min(), times.max())))
    where = f"up to {ends} times the training size" if len(times) else "beyond the training size"
    is_are = "is" if len(times) < 2 else "are"
    return f"{name} {number} {is_are} solved {where}{tail if unlearnt else ''}"


def _is_learnt(cells: pd.DataFrame) -> "pd.Series[bool]":
    """Task -> whether every seed has learnt it; `cells` are of one scheme."""
    return cells.groupby("task")["is_learnt"].all()


def _schemes(cells: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The schemes under which some task is learnt, and those under which none is."""
    present = [scheme for scheme in POSITION_WORDS if scheme in set(cells["positions"])]
    learnt = [scheme for scheme in present if _is_learnt(cells[cells["positions"] == scheme]).any()]
    return learnt, [scheme for scheme in present if scheme not in learnt]


def positions_figure(cells: pd.DataFrame, num_examples: int) -> Figure:
    """Exact match against size, in multiples of the training size: a panel a scheme, a line a task.

    Args:
        cells: of `over_seeds`, tasks without a k.
        num_examples: a size.
    """
    learnt, unlearnt = _schemes(cells)
    shown = learnt[:_MOST_PANELS] or unlearnt[:1]
    figure, axes = panels(len(shown), _HEIGHT)
    tasks = sorted(cells["task"].unique())
    for scheme, ax in zip(shown, axes, strict=True):
        of_scheme = cells[cells["positions"] == scheme]
        ends = []
        for task, line in of_scheme.groupby("task"):
            look = Style(POSITION_STYLES[scheme].color, _MARKERS[tasks.index(str(task)) % len(_MARKERS)])
            times = line.assign(size=line["size"] / line["largest_train_size"])
            ends.append(_draw_line(times, ax, task_words(str(task)), look))
        _finish(ax, 1, "test size / largest training size", POSITION_WORDS[scheme])
        ax.set_xlim(0, 1.03 * (cells["size"] / cells["largest_train_size"]).max())
        label_line_ends(ax, ends)
    figure.axes[0].set_ylabel(_EXACT_MATCH)
    solved = "solved: 90 %, learnt: 99 % in the sizes of training, guessing: about 0 %"
    put_title(figure, positions_title(cells), sample_size(cells, num_examples), _BANDS, solved)
    return figure


def sparsity_title(cells: pd.DataFrame) -> str:
    """Whether fewer bits hold farther, across trainings and within the one on the most bits.

    Each is read at the largest size at which any number of bits is solved: beyond it all may guess.

    Args:
        cells: of `over_seeds`, one task and scheme with a k.
    """
    noun = _deciding(cells)
    across = _where_one_is_solved(cells[cells["sparsity"] == cells["largest_train_sparsity"]])
    within = _where_one_is_solved(_of_most_bits(cells))
    if not _fewer_hold_farther(across):
        return f"Exact match against size, by the number of {noun}s that count"
    if _fewer_hold_farther(within):
        return f"Fewer {noun}s generalize farther, across trainings and within one"
    widest = within["lowest"].max(), within["lowest"].max()
    alike = not lie_apart(widest, (within["lowest"].min(), within["highest"].min()))
    return f"Trained on fewer {noun}s, models generalize farther" + (
        f"; within one training the number of {noun}s makes no clear difference" if alike else ""
    )


def _where_one_is_solved(lines: pd.DataFrame) -> pd.DataFrame:
    """The rows at the largest size at which some line is at `SOLVED` or above; at the largest where none is.

    Args:
        lines: a row a line and size.
    """
    solved = lines.loc[lines["exact_match"] >= SOLVED, "size"]
    largest = lines["size"].max() if solved.empty else solved.max()
    return lines[lines["size"] == largest]


def _fewer_hold_farther(at_one_size: pd.DataFrame) -> bool:
    """Whether the ranges of the seeds at the fewest and the most bits lie `TOLD_APART` apart, so ordered, and
    no step between them goes the other way by as much.

    Args:
        at_one_size: a row a k.
    """
    ascending = at_one_size.sort_values("sparsity")
    if len(ascending) < 2 or not ascending["is_learnt"].all():
        return False
    steps = ascending["exact_match"].diff().dropna()
    fewest, most = ascending.iloc[0], ascending.iloc[-1]
    return bool((steps < TOLD_APART).all() and fewest["lowest"] >= most["highest"] + TOLD_APART)


def _deciding(cells: pd.DataFrame) -> str:
    """What k counts in the one task of these cells."""
    return DECIDING.get(str(cells["task"].iloc[0]), "bit")


def _of_most_bits(cells: pd.DataFrame) -> pd.DataFrame:
    """Of the training with the largest K_train, what it was trained for: k up to K_train."""
    most = cells[cells["largest_train_sparsity"] == cells["largest_train_sparsity"].max()]
    return most[most["sparsity"] <= most["largest_train_sparsity"]]


def sparsity_figure(cells: pd.DataFrame, num_examples: int) -> Figure:
    """Exact match against size: across trainings, each at its own most bits; and within the last one, by k.

    Args:
        cells: of `over_seeds`, one task and scheme with a k.
        num_examples: a size.
    """
    own = cells[cells["sparsity"] == cells["largest_train_sparsity"]]
    within, most = _of_most_bits(cells), int(cells["largest_train_sparsity"].max())
    noun, task = _deciding(cells), str(cells["task"].iloc[0])
    shown = [("sparsity", within, f"one training, on up to {counted(most, noun)}", "{}")]
    if own["largest_train_sparsity"].nunique() > 1:
        shown.insert(0, ("largest_train_sparsity", own, f"each training at its most {noun}s", "up to {}"))
    figure, axes = panels(len(shown), _HEIGHT)
    colors = graded(most)
    for (column, lines, title, words), ax in zip(shown, axes, strict=True):
        ends = []
        for bits, line in lines.groupby(column):
            number = int(float(str(bits)))
            look = Style(colors[number - 1], _MARKERS[(number - 1) % len(_MARKERS)])
            ends.append(_draw_line(line, ax, words.format(counted(number, noun)), look))
        _finish(ax, int(cells["largest_train_size"].iloc[0]), "size of test examples (tokens)", title)
        ax.set_xlim(0, 1.03 * cells["size"].max())
        if task in GUESSED:
            name_level(ax, GUESSED[task], "guessing", below=True)
            if pd.concat([own, within])["lowest"].min() > _BELOW_GUESSING:
                ax.set_ylim(bottom=_BELOW_GUESSING)
        label_line_ends(ax, ends)
    figure.axes[0].set_ylabel(_EXACT_MATCH)
    names = f"{task_words(task)}, {POSITION_WORDS[cells['positions'].iloc[0]]}"
    parts = names, sample_size(cells, num_examples), _BANDS
    put_title(figure, sparsity_title(cells), *parts)
    return figure


def _draw_line(cells: pd.DataFrame, ax: Axes, words: str, look: Style) -> LineEnd:
    ascending = cells.sort_values("size")
    is_learnt = bool(ascending["is_learnt"].all())
    style = (
        look.measured if is_learnt else look.measured | {"color": GREY, "linewidth": 0.7, "markersize": 2.5}
    )
    ax.plot(ascending["size"], ascending["exact_match"], **style)
    band = ascending["lowest"], ascending["highest"]
    ax.fill_between(ascending["size"], *band, color=style["color"], alpha=0.15, linewidth=0)
    last = ascending.iloc[-1]
    named = words if is_learnt else f"{words}:\nnot learnt by every seed"
    return LineEnd(last["size"], last["exact_match"], named, style["color"])


def _finish(ax: Axes, trained: float, label: str, title: str) -> None:
    ax.axvspan(0, trained, color=GREY, alpha=0.12, linewidth=0)
    ax.annotate(
        "trained", (0, 0), (2, 2), xycoords="axes fraction", textcoords="offset points", ha="left",
        va="bottom", fontsize=8, color=GREY,
    )  # fmt: skip
    ax.set_title(title)
    ax.set_xlabel(label)
    ax.set_ylim(_BOTTOM, 1.03)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
