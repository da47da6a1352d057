"""Loss at unseen distances, by the tokens that a prediction needs; what distance and number do alone.

Experiments A and B of the plan (analysis/LOG.md, 2026-11-27). A: short-context models trained at 64 tokens
with contiguous IDs, given up to 224; targets and tokens needed are the first preregistered study's. Slopes
are in nats per doubling of the tokens needed. B: the last 32 tokens stand behind 32 more as in training;
behind the same 32 moved away (distance only); behind 192 more squeezed into 32 position IDs (number only); or
behind all 192 at their own IDs (both). Further tables and the verdict of B were made at commit 30cc5e52.
"""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.figures.slopes import SPARSITY, Row, contrast, design_of, of_each, with_sparsity
from analysis.read import interval_columns, rows_by, sample_counts
from pipeline.results.statistics import Interval

REFERENCE = Path(__file__).parents[1] / "reference"
KEYS = ["document_id", "target_position"]
SHORT = "short_context_models"
LONG = "long_context_models"
ROLES = (SHORT, LONG)
GAP = "gap at 224"
BEYOND = "gap at 224 less that at 64"
LOWEST = "gap at 224, lowest eighth left out"
HIGHEST = "gap at 224, highest eighth left out"
SHARE_OF_THE_MEAN = 0.05
"""Smallest effect size of interest: a slope of 5% of the mean gap per doubling."""
# 32@192: the near tokens begin at ID 192 rather than 32. 192/32: six tokens stand at each of 32 IDs.
CONDITIONS = {"trained": "32", "distance only": "32@192", "number only": "192/32", "both": "192"}
"""Condition -> its placement, near context 32."""
_RESAMPLES = 2000


def kept_targets() -> pd.DataFrame:
    """Targets of the first preregistered study that have a sparsity: columns "mean_log2_k of NUMBER"."""
    table = pd.read_parquet(REFERENCE / "decisive" / "outcome_targets.parquet")
    rows = table[table["measured"] == "long_context_loss"].reset_index(drop=True)
    # A cell holds a list, a value per evaluator.
    values_TJ = pd.DataFrame(np.stack(rows[SPARSITY].to_list()).astype("float64"))
    return with_sparsity(rows.join(values_TJ.add_prefix(f"{SPARSITY} of ")))


def values_of(placed: pd.DataFrame, near: int, placement: str, role: str) -> pd.DataFrame:
    """A row a target, in the order of the keys, a column a model, nats."""
    rows = placed[(placed["near_context_length"] == near) & (placed["placement"] == placement)]
    values = np.stack(rows[role].to_list())
    index = pd.MultiIndex.from_frame(rows[KEYS])
    return pd.DataFrame(values, index, [f"{role} {number}" for number in range(values.shape[1])]).sort_index()


def unseen_distances(placed: pd.DataFrame) -> pd.DataFrame:
    """Slopes on mean_log2_k: a row an outcome; `mean` is that of the outcome, nats."""
    near, gap = (
        pd.concat([values_of(placed, 64, placement, role) for role in ROLES], axis=1)
        # 160 tokens before the nearest 64 make a context of 224.
        for placement in ("near", "own:160")
    )
    known = kept_targets().set_index(KEYS, drop=False)
    known = known[known.index.isin(gap.index)]
    sparsity = of_each(known, SPARSITY).mean(axis=1)
    low, high = sparsity.quantile([1 / 8, 7 / 8])
    # The gap at 64 tokens is subtracted target by target, and with it what is not due to length.
    cases = {
        GAP: (gap, known),
        BEYOND: (gap - near, known),
        LOWEST: (gap, known[sparsity > low]),
        HIGHEST: (gap, known[sparsity < high]),
    }
    rows = []
    for outcome, (of_all, targets) in cases.items():
        of_models = of_all.loc[targets.index]
        short, long = ([name for name in map(str, of_models) if name.startswith(role)] for role in ROLES)
        found = contrast(design_of(targets).least_squares(of_models), short, long)
        mean = of_models[short].mean(axis=1).mean() - of_models[long].mean(axis=1).mean()
        rows.append({"outcome": outcome, "mean": mean, **found, **sample_counts(targets)})
    return pd.DataFrame(rows)


def verdict(slopes: pd.DataFrame) -> str:
    """Decide A by the rule of the log: "supported", "refuted", "opposite" or "open"."""
    rows = rows_by(slopes, "outcome")
    primary = [rows[GAP], rows[BEYOND]]
    smallest = SHARE_OF_THE_MEAN * rows[GAP]["mean"]
    if all(row["slope_low"] > 0 for row in rows.values()):
        return "supported"
    if all(row["slope_high"] < 0 for row in primary):
        return "opposite"
    return "refuted" if all(row["slope_high"] < smallest for row in primary) else "open"


def distance_or_number(placed: pd.DataFrame) -> pd.DataFrame:
    """Effect of each condition: a row a text, role and condition; intervals over texts and models.

    Own text: rise of the loss over that with 64 tokens as in training. Another text's tokens: length
    interference. `share` is that of the condition "both".

    Shapes: C conditions, D documents, M models, R resamples.
    """
    rows = list[Row]()
    generator = np.random.default_rng(0)
    for kind, role in product(("own", "swap"), ROLES):
        of = {name: values_of(placed, 32, f"{kind}:{word}", role) for name, word in CONDITIONS.items()}
        # A KL is already measured from the near tokens alone; a loss needs something to rise from.
        base = of["trained"] if kind == "own" else 0.0
        # Sums and counts apart: texts have different numbers of targets, and the mean is over targets.
        sums_CDM = np.stack([(values - base).groupby(level="document_id").sum() for values in of.values()])
        counts_D = of["both"].groupby(level="document_id").size().to_numpy()
        _, num_texts, num_models = sums_CDM.shape
        drawn_RC = np.empty((_RESAMPLES, len(of)))
        for resample in range(_RESAMPLES):
            # Texts and models are crossed, so both are resampled; one draw serves all conditions, which
            # stay paired.
            texts = generator.integers(num_texts, size=num_texts)
            models = generator.integers(num_models, size=num_models)
            totals_C = sums_CDM[:, texts][:, :, models].sum(axis=(1, 2)) / num_models
            drawn_RC[resample] = totals_C / counts_D[texts].sum()
        means_C = sums_CDM.sum(axis=(1, 2)) / num_models / counts_D.sum()
        ends_2C = np.quantile(drawn_RC, (0.025, 0.975), axis=0)
        # The last condition is "both".
        for name, mean, low, high in zip(of, means_C, *ends_2C, strict=True):
            row: Row = {"text": kind, "role": role, "condition": name, "share": mean / means_C[-1]}
            row |= interval_columns("value", Interval(mean, low, high))
            rows.append(row | sample_counts(of["both"].reset_index()))
    return pd.DataFrame(rows)


def distance_or_number_figure(table: pd.DataFrame) -> Figure:
    """Effects of distance and number, alone and together: a panel a text, a bar a condition and role."""
    figure, axes = drawing.panels(2, 2.3, sharey=True)
    names = list(CONDITIONS)
    titles = {"own": "rise of the loss on the text itself", "swap": "interference of another text (KL)"}
    looks = {SHORT: ("short-context models", drawing.GREEN), LONG: ("long-context models", "#B5B5B5")}
    for ax, (kind, title) in zip(axes, titles.items(), strict=True):
        for place, (role, (words, color)) in enumerate(looks.items()):
            rows = table[(table["text"] == kind) & (table["role"] == role)].set_index("condition").loc[names]
            errors = [rows["value"] - rows["value_low"], rows["value_high"] - rows["value"]]
            heights = np.arange(len(names)) + 0.4 * place
            ax.barh(heights, rows["value"], 0.38, color=color, label=words, xerr=errors)
        ax.set(title=title, xlabel="nats")
    axes[0].set_yticks(np.arange(len(names)) + 0.2, names)
    axes[0].invert_yaxis()
    axes[1].legend(loc="center right")
    share = table[table["role"] == SHORT].set_index(["text", "condition"])["share"]
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
