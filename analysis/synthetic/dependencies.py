"""How well the selection rules find the tokens that truly decide: tables and figures of found dependencies.

Found is what stands among the first as many tokens as a target has true dependencies, where precision and
recall are one number. It is computed model by model; three seeds bear no interval, so the range over the
seeds stands beside the mean.

Of predicted position IDs: beside the token before it, which the short context holds, one far token decides an
ID, that of the prompt which has it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import drawing
from analysis.synthetic.accuracy import task_words
from pipeline.measuring.rules import BACKGROUND, REMOVE

CONDITION = ["task", "positions", "largest_train_size", "largest_train_sparsity", "size", "sparsity"]
SELECTION = ["rule", "intervention"]
_TOKENS_OF_ASSIGNMENT = 3  # left side, =, right side; the prompt begins with one
PARTS: dict[str, dict[str, Callable[[pd.DataFrame], pd.Series]]] = {
    "sparse_parity": {
        "bits": lambda rows: rows["context_token"] != "*",
        "marks": lambda rows: rows["context_token"] == "*",
    },
    "variable_assignment": {
        "right sides": lambda rows: rows["context_position"] % _TOKENS_OF_ASSIGNMENT != 0,
        "left sides": lambda rows: rows["context_position"] % _TOKENS_OF_ASSIGNMENT == 0,
    },
}
"""Task -> the parts that its dependencies play: of a marked bit, of an assignment that is followed."""


def by_part(rows: pd.DataFrame) -> pd.DataFrame:
    """Which of the true dependencies are found, by the part they play, over seeds.

    Found is what is among the first as many tokens as the target has dependencies. These come in pairs, one
    of each part of the task; what lies in the short context must be whole pairs.

    Returns:
        A row a condition, rule, intervention and part, with `found`, the share of the dependencies of that
        part, `found_lowest` and `found_highest` over the seeds, `chance` (as many tokens drawn uniformly),
        `num_seeds` and `num_targets` (of a seed, the fewest).
    """
    within = _within(rows)
    # A target has as many rows here as dependencies, and a part of these each.
    tables = [
        of_task.assign(part=part, found=(of_task["is_dependency"] & is_part(of_task)) * len(parts))
        for task, of_task in within.groupby("task")
        for parts in [PARTS.get(str(task), {"true tokens": lambda rows: rows["is_dependency"]})]
        for part, is_part in parts.items()
    ]
    return _over_seeds(pd.concat(tables), ["found", "chance"])


def _within(rows: pd.DataFrame) -> pd.DataFrame:
    """The first as many tokens as a target has dependencies, with the share that uniform draws would find."""
    within = rows[rows["rank"] <= rows["num_dependencies"]]
    return within.assign(chance=within["num_dependencies"] / within["num_far_tokens"])


def _over_seeds(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """A row a condition, selection and part: means of columns over targets, of these the mean over seeds."""
    keys = [*CONDITION, *SELECTION, "part"]
    means: dict[str, Any] = {name: (name, "mean") for name in names}
    of_models = rows.groupby([*keys, "model"], dropna=False, sort=False).agg(
        **means, targets=("rank", lambda ranks: (ranks == 1).sum())
    )
    table = of_models.groupby(keys, dropna=False, sort=False).agg(
        **means,
        found_lowest=("found", "min"),
        found_highest=("found", "max"),
        num_seeds=("found", "size"),
        num_targets=("targets", "min"),
    )
    return table.reset_index()


def sample_size(cells: pd.DataFrame) -> str:
    """Of how many seeds and targets the numbers are, for a caption."""
    return f"n = {drawing.counted_seeds(cells)}, {cells['num_targets'].min():,} or more targets a sample"


_REPLACED = ", token replaced"
_WHAT_HAPPENS = {REMOVE: ", token removed", BACKGROUND: _REPLACED, "substitute": _REPLACED}
"""Tables made before commit 9a5d093 say `substitute` of leaving out under `background`: the same numbers."""
_MOST_PANELS = 2
# inches
_ROW_HEIGHT = 0.24
_FRAME_HEIGHT = 1.0
_ASIDE = 0.14  # of a row, between parts


def selection_words(rule: str, intervention: object) -> str:
    """A rule, and what happens to a token that is left out, in words."""
    return drawing.rule_text(rule) + _WHAT_HAPPENS.get(str(intervention), "")


def found_figure(parts: pd.DataFrame) -> Figure:
    """A panel a task, a row a rule, a point a part; the panels share their axis.

    Of at most two tasks that is shown which has the most relevant bits, and so more than one token to find.
    """
    of_task = [rows for _, rows in parts.groupby("task")]
    most = [rows[rows["sparsity"].isna() | (rows["sparsity"] == rows["sparsity"].max())] for rows in of_task]
    shown = [next(one for _, one in rows.groupby(CONDITION, dropna=False)) for rows in most][:_MOST_PANELS]
    keys = parts[["rule", "intervention"]].drop_duplicates().astype(object)
    rows = [(str(rule), what) for rule, what in keys.itertuples(index=False)]
    best = parts.groupby(["rule", "intervention"], dropna=False)["found"].max()
    rows.sort(key=lambda row: best[row[0]][best[row[0]].index.isin([row[1]])].iloc[0])
    figure, axes = drawing.panels(len(shown), _FRAME_HEIGHT + _ROW_HEIGHT * len(rows))
    for of_one, ax in zip(shown, axes, strict=True):
        _draw(of_one, rows, ax)
    axes[0].set_yticks(range(len(rows)), [selection_words(*row) for row in rows])
    note = "share among the first as many tokens as there are true ones; bars: range of seeds"
    title = "Which of the tokens that truly decide do the rules find?"
    drawing.put_title(figure, title, sample_size(parts), note)
    return figure


def _draw(of_one: pd.DataFrame, rows: list[tuple[str, object]], ax: Axes) -> None:
    parts = list(dict.fromkeys(of_one["part"]))
    named: dict[str, float] = {}
    for row in of_one.to_dict("records"):
        # As text, since no intervention is NaN, which equals nothing.
        place = [(rule, str(what)) for rule, what in rows].index((row["rule"], str(row["intervention"])))
        y = place + _ASIDE * ((len(parts) - 1) / 2 - parts.index(row["part"])) * 2
        style = {"color": drawing.rule_style(row["rule"]).color, "marker": "os"[parts.index(row["part"]) % 2]}
        drawing.draw_points(ax, [y], pd.DataFrame([row]), "found", [style], ends=("lowest", "highest"))
        if place == len(rows) - 1:
            named[row["part"]] = row["found"]
    chance = of_one["chance"].mean()
    ax.axvline(chance, color=drawing.GREY, linewidth=1, linestyle=":", zorder=0)
    ax.text(chance + 0.02, -0.85, "chance", va="center", color=drawing.GREY)
    for part, found in named.items():
        ax.annotate(
            part,
            (found, 1),
            (0, 2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="bottom",
        )
    ax.set_xlim(-0.03, 1.06)
    ax.set_ylim(-1.2, len(rows) - 0.4)
    ax.set_yticks([])
    first = of_one.iloc[0]
    of_k = "" if pd.isna(first["sparsity"]) else f" of {drawing.counted(int(first['sparsity']), 'bit')}"
    ax.set_title(f"{task_words(first['task'])}{of_k}", pad=16)
    ax.set_xlabel("true tokens found (share)")


KINDS: dict[str, dict[str, Callable[[pd.DataFrame], pd.Series]]] = {
    "variable_assignment": {
        "a left side": lambda rows: rows["target_index"] % _TOKENS_OF_ASSIGNMENT == 0,
        "=": lambda rows: rows["target_index"] % _TOKENS_OF_ASSIGNMENT == 1,
        "a right side": lambda rows: rows["target_index"] % _TOKENS_OF_ASSIGNMENT == 2,
    }
}
"""Task -> whose IDs are predicted. The content decides that of a left side; the others follow it."""


def by_kind(rows: pd.DataFrame) -> pd.DataFrame:
    """How many of the tokens that decide an ID are found, by the kind of ID.

    Returns:
        A row a condition, rule, intervention and kind (`part`), with `found`, `found_lowest` and
        `found_highest` over the seeds, `chance` (as many tokens drawn uniformly), `effect` (mean of what
        leaving these tokens out does, nats; NaN where the rule does not say), `num_seeds` and `num_targets`
        (of a seed, the fewest).
    """
    within = _within(rows).assign(found=lambda within: within["is_dependency"])
    tables = [
        of_task[is_kind(of_task)].assign(part=kind)
        for task, of_task in within.groupby("task")
        for kind, is_kind in KINDS.get(str(task), {"every ID": lambda rows: rows["rank"] > 0}).items()
    ]
    return _over_seeds(pd.concat(tables), ["found", "chance", "effect"])
