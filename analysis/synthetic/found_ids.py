"""Which of the tokens that decide predicted position IDs the rules find: tables of `found_id_dependencies`.

Beside the token before it, which the short context holds, one far token decides an ID: that of the prompt
which has it. Found is what is among the first as many tokens as a target has far dependencies. Numbers are
means over seeds, with their range.
"""

from collections.abc import Callable

import pandas as pd

from analysis.synthetic.found_dependencies import CONDITION, SELECTION
from analysis.titles import percent

_TOKENS_OF_ASSIGNMENT = 3
KINDS: dict[str, dict[str, Callable[[pd.DataFrame], pd.Series]]] = {
    "variable_assignment": {
        "where an assignment begins": lambda rows: rows["target_index"] % _TOKENS_OF_ASSIGNMENT == 0,
        "within one": lambda rows: rows["target_index"] % _TOKENS_OF_ASSIGNMENT != 0,
    },
}
"""Task -> kinds of IDs: those that the content decides, and those that follow the one before."""
_OF_OTHER_TASKS: dict[str, Callable[[pd.DataFrame], pd.Series]] = {"every ID": lambda rows: rows["rank"] > 0}


def by_kind(rows: pd.DataFrame) -> pd.DataFrame:
    """How many of the tokens that decide an ID are found, by the kind of ID.

    Args:
        rows: `found_id_dependencies` as `read_artefact` reads it.

    Returns:
        A row a condition, rule, intervention and kind (`part`), with `found`, `found_lowest` and
        `found_highest` over the seeds, `chance` (as many tokens drawn uniformly), `num_seeds` and
        `num_targets` (of a seed, the fewest).
    """
    within = rows[rows["rank"] <= rows["num_dependencies"]]
    within = within.assign(chance=within["num_dependencies"] / within["num_far_tokens"])
    tables = [
        of_task[is_kind(of_task)].assign(part=kind)
        for task, of_task in within.groupby("task")
        for kind, is_kind in KINDS.get(str(task), _OF_OTHER_TASKS).items()
    ]
    keys = [*CONDITION, *SELECTION, "part"]
    of_models = pd.concat(tables).groupby([*keys, "model"], dropna=False, sort=False)
    shares = of_models.agg(
        found=("is_dependency", "mean"),
        chance=("chance", "mean"),
        targets=("rank", lambda ranks: (ranks == 1).sum()),
    )
    table = shares.groupby(keys, dropna=False, sort=False).agg(
        found=("found", "mean"), found_lowest=("found", "min"), found_highest=("found", "max"),
        chance=("chance", "mean"), num_seeds=("found", "size"), num_targets=("targets", "min"),
    )  # fmt: skip
    return table.reset_index()


def kinds_title(kinds: pd.DataFrame) -> str:
    """What the best rule finds of each kind, where the ranges of the seeds do not touch.

    Args:
        kinds: of `by_kind`, one condition.
    """
    best = kinds.sort_values("found", ascending=False, kind="stable").iloc[0]
    is_best = (kinds["rule"] == best["rule"]) & kinds["intervention"].isin([best["intervention"]])
    rows = kinds[is_best].sort_values("found").to_dict("records")
    least, most = rows[0], rows[-1]
    if len(rows) < 2 or most["found_lowest"] <= least["found_highest"]:
        return "What the rules find of the tokens that decide the next position ID"
    shares = (f"{percent(row['found'])} {row['part']}" for row in (most, least))
    return f"Of the tokens that decide the next position ID the best rule finds {' and '.join(shares)}"
