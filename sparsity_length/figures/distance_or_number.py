"""Unseen distances and the number of distant tokens, alone and together, in models trained at 64 tokens.

Experiment B of the plan (analysis/LOG.md, 2026-11-27). The last 32 tokens stand behind 32 more as in
training; behind the same 32 moved away (distance only); behind 192 more squeezed into 32 position IDs (number
only); or behind all 192 at their own IDs (both). Further tables and the verdict were made at commit 30cc5e52.
"""

from itertools import product

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from sparsity_length.figures import drawing
from sparsity_length.figures.read import interval_columns, interval_of, rows_where, sample_counts
from sparsity_length.figures.slopes import KEYS, Row, Slopes, contrast

SHORT = "short_context_models"
LONG = "long_context_models"
# 32@192: the near tokens begin at ID 192 rather than 32. 192/32: six tokens stand at each of 32 IDs.
CONDITIONS = {"trained": "32", "distance only": "32@192", "number only": "192/32", "both": "192"}
"""Condition -> its placement, near context 32."""


def values_of(placed: pd.DataFrame, near: int, placement: str, role: str) -> pd.DataFrame:
    """One row per target, in the order of the keys, and one column per model, nats."""
    rows = rows_where(placed, near_context_length=near, placement=placement)
    values = np.stack(rows[role].to_list())
    index = pd.MultiIndex.from_frame(rows[KEYS])
    return pd.DataFrame(values, index, [f"{role} {number}" for number in range(values.shape[1])]).sort_index()


def of_conditions(placed: pd.DataFrame) -> pd.DataFrame:
    """Effect of each condition: one row per text, role and condition; intervals over texts and models.

    Own text: rise of the loss over that with 64 tokens as in training. Another text's tokens: length
    interference. `share` is that of the condition "both".
    """
    rows = list[Row]()
    for kind, role in product(("own", "swap"), (SHORT, LONG)):
        of = {name: values_of(placed, 32, f"{kind}:{word}", role) for name, word in CONDITIONS.items()}
        # A KL is already measured from the near tokens alone; a loss needs something to rise from.
        base = of["trained"] if kind == "own" else 0.0
        found = [mean_over_models(values - base) for values in of.values()]
        for name, row in zip(of, found, strict=True):
            # The last condition is "both".
            share = row["value"] / found[-1]["value"]
            row |= {"text": kind, "role": role, "condition": name, "share": share}
            rows.append(row | sample_counts(of["both"].reset_index()))
    # What is 0 for every text and model, a loss minus itself, has no error.
    return pd.DataFrame(rows).fillna({"value_low": 0.0, "value_high": 0.0})


def mean_over_models(values: pd.DataFrame) -> Row:
    """The mean of `values_of` over targets and models, as columns `value`; interval over texts and models.

    Of texts by the jackknife, of models, which are few, by `slopes.contrast`.
    """
    of_texts = values.groupby(level="document_id")
    sums_GM = of_texts.sum().to_numpy()
    counts_G1 = of_texts.size().to_numpy()[:, None]
    without_GM = (sums_GM.sum(axis=0) - sums_GM) / (counts_G1.sum() - counts_G1)
    covariance_MM = (len(sums_GM) - 1) * np.cov(without_GM, rowvar=False, ddof=0)
    models = list(map(str, values))
    means = Slopes(models, values.mean().to_numpy(), covariance_MM, len(sums_GM) - 1)
    with np.errstate(invalid="ignore"):  # a loss minus itself is 0 everywhere
        found = contrast(means, models, [])
    return interval_columns("value", interval_of(found, "slope"))


def figure(table: pd.DataFrame) -> Figure:
    """Effects of distance and number: one panel per text, one bar per condition and role."""
    figure, axes = drawing.panels(2, 2.3)
    names = list(CONDITIONS)
    titles = {"own": "rise of the loss on the text itself", "swap": "interference of another text (KL)"}
    looks = {SHORT: ("short-context models", drawing.GREEN), LONG: ("long-context models", "#B5B5B5")}
    for ax, (kind, title) in zip(axes, titles.items(), strict=True):
        for place, (role, (words, color)) in enumerate(looks.items()):
            rows = rows_where(table, text=kind, role=role).set_index("condition").loc[names]
            errors = [rows["value"] - rows["value_low"], rows["value_high"] - rows["value"]]
            heights = np.arange(len(names)) + 0.4 * place
            ax.barh(heights, rows["value"], 0.38, color=color, label=words, xerr=errors)
        ax.set(title=title, xlabel="nats")
    axes[0].set_yticks(np.arange(len(names)) + 0.2, names)
    axes[0].invert_yaxis()
    axes[1].legend(loc="center right")
    share = rows_where(table, role=SHORT).set_index(["text", "condition"])["share"]
    drawing.put_title(
        figure,
        f"Unseen distance alone causes {share['own', 'distance only']:.0%} of the rise in loss and"
        f" {share['swap', 'distance only']:.0%} of the interference; more tokens alone cause"
        f" {share['own', 'number only']:.0%} and {share['swap', 'number only']:.0%}",
        drawing.sample_size(table),
        "percentages: of both together",
        "bars: 95% over documents and models",
    )
    return figure
