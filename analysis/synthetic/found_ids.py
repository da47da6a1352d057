"""Which of the tokens that decide predicted position IDs the rules find: tables of `found_id_dependencies`.

Beside the token before it, which the short context holds, one far token decides an ID: that of the prompt
which has it. Found is what is among the first as many tokens as a target has far dependencies. Numbers are
means over seeds, with their range.
"""

from collections.abc import Callable

import pandas as pd

from analysis.synthetic.found_dependencies import CONDITION, SELECTION
from analysis.titles import percent
from pipeline.influence.rules import REMOVE

LEAVING_OUT = "leave_one_out_divergence"

_TOKENS_OF_ASSIGNMENT = 3
KINDS: dict[str, dict[str, Callable[[pd.DataFrame], pd.Series]]] = {
    "variable_assignment": {
        "a left side": lambda rows: rows["target_index"] % _TOKENS_OF_ASSIGNMENT == 0,
        "=": lambda rows: rows["target_index"] % _TOKENS_OF_ASSIGNMENT == 1,
        "a right side": lambda rows: rows["target_index"] % _TOKENS_OF_ASSIGNMENT == 2,
    },
}
"""Task -> whose IDs are predicted. The content decides that of a left side; the others follow it."""
_OF_OTHER_TASKS: dict[str, Callable[[pd.DataFrame], pd.Series]] = {"every ID": lambda rows: rows["rank"] > 0}


def by_kind(rows: pd.DataFrame) -> pd.DataFrame:
    """How many of the tokens that decide an ID are found, by the kind of ID.

    Args:
        rows: `found_id_dependencies` as `read_artefact` reads it.

    Returns:
        A row a condition, rule, intervention and kind (`part`), with `found`, `found_lowest` and
        `found_highest` over the seeds, `chance` (as many tokens drawn uniformly), `effect` (mean of what
        leaving these tokens out does, nats; NaN where the rule does not say), `num_seeds` and `num_targets`
        (of a seed, the fewest).
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
        effect=("effect", "mean"),
        targets=("rank", lambda ranks: (ranks == 1).sum()),
    )
    table = shares.groupby(keys, dropna=False, sort=False).agg(
        found=("found", "mean"), found_lowest=("found", "min"), found_highest=("found", "max"),
        chance=("chance", "mean"), effect=("effect", "mean"), num_seeds=("found", "size"),
        num_targets=("targets", "min"),
    )  # fmt: skip
    return table.reset_index()


def of_largest_size(kinds: pd.DataFrame) -> pd.DataFrame:
    """The rows of one condition: that with the largest examples, the last of several.

    Args:
        kinds: of `by_kind`, one task.
    """
    conditions = [rows for _, rows in kinds.groupby(CONDITION, dropna=False)]
    return max(reversed(conditions), key=lambda rows: int(rows["size"].iloc[0]))


def kinds_title(kinds: pd.DataFrame) -> str:
    """What leaving out finds, and how far that moves the prediction.

    It says what is shown where tokens were not taken away.

    Args:
        kinds: of `by_kind`, one condition.
    """
    removed = kinds[(kinds["rule"] == LEAVING_OUT) & (kinds["intervention"] == REMOVE)]
    if removed.empty:
        return "What the rules find of the tokens that decide the next position ID"
    low, high = (f"{end:.1f}" for end in (removed["effect"].min(), removed["effect"].max()))
    by = f"{low} nats" if low == high else f"{low} to {high} nats"
    return (
        "The prompt's token that has the next position ID decides it: taken away, it is found in"
        f" {percent(removed['found'].min())}, and that moves the prediction by {by}"
    )
