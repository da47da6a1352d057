"""The drawing of how many far tokens predictions need: tables of `gain_bins` in, Figures out."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figure_texts import LineEnd, label_line_ends, put_title
from analysis.figures import TEXT_WIDTH, draw_with_bars, panels, tokens_axis
from analysis.generalization.sparsity_measures import BEYOND_NULL, measure_words, rule_of, shown_measure
from analysis.own_measurements import needs_null
from analysis.palette import rule_look
from analysis.roles import Role, common_size, size_words
from analysis.titles import BARS, SHOWN_K, counted, is_above, percent, sample_size, subtitle


def sparsity_figure(needed: pd.DataFrame, roles: Mapping[str, Role]) -> Figure:
    """Share of the targets that gain for which k tokens suffice: a panel a measure, a line a model.

    The measures are the rule that is trusted most, and beyond its null the first that needs one.

    Args:
        needed: `gain_bins.shares_of_gaining_targets` of every model, with the column `model`.
        roles: of the models.
    """
    measures, names = shown_measures(needed), _names(needed["model"], roles)
    figure, grid = panels(1, len(measures), TEXT_WIDTH, 3.1)
    axes = np.ravel(grid)
    for measure, ax in zip(measures, axes, strict=True):
        rows = needed[needed["measure"] == measure]
        rule = rule_of(measure)
        ends = []
        for place, (model, line) in enumerate(rows.groupby("model", sort=False)):
            width = 1.0 + 0.8 * place  # models of one role differ by the weight of their lines
            draw_with_bars(ax, line["k"], line, "share", **rule_look(rule).measured | {"linewidth": width})
            last = line.iloc[-1]
            ends.append(LineEnd(last["k"], last["share"], names[str(model)], rule_look(rule).color))
        tokens_axis(ax, rows["k"].unique())
        ax.set_ylim(0, 1)
        ax.set_title(measure_words(measure), loc="left")
        label_line_ends(ax, ends)
    axes[0].set_ylabel("share of targets with k* of at most k")
    size = common_size(roles[str(model)] for model in needed["model"].unique())
    told = subtitle(sample_size(needed[needed["measure"].isin(measures)]), "of targets that gain", size, BARS)
    put_title(figure, sparsity_title(needed), told)
    return figure


def shown_measures(needed: pd.DataFrame) -> list[str]:
    """Of the measures present, the trusted rule's, and the first beyond its null where there is one."""
    present = list(dict.fromkeys(needed["measure"]))
    trusted = shown_measure(present)
    beyond = [measure for measure in present if measure.endswith(BEYOND_NULL)]
    return [*([] if needs_null(rule_of(trusted)) and beyond else [trusted]), *beyond[:1]]


def _names(models: pd.Series, roles: Mapping[str, Role]) -> dict[str, str]:
    """Models by their sizes where they differ in these, else by their training."""
    sizes = {str(model): size_words(roles[str(model)].num_parameters) for model in models.unique()}
    if len(set(sizes.values())) == len(sizes) > 1:
        return {model: size.replace(" ", "\n").replace("\nM", " M") for model, size in sizes.items()}
    return {model: roles[model].words.replace(", ", ",\n") for model in sizes}


def sparsity_title(needed: pd.DataFrame) -> str:
    """For what share of the predictions that gain few tokens suffice, over the models shown.

    Args:
        needed: as `sparsity_figure` takes it.
    """
    measure = shown_measures(needed)[0]
    rows = needed[needed["measure"] == measure]
    ks = sorted(rows["k"].unique())
    k = int(SHOWN_K if SHOWN_K in ks else ks[len(ks) // 2])
    suffice = "suffices" if k == 1 else "suffice"
    rows = rows[rows["k"] == k]
    if not all(is_above(low) for low in rows["share_low"]):
        return f"Whether {counted(k, 'token')} {suffice} for any prediction that gains is not clear"
    shares = rows["share"]
    least, most = percent(shares.min()), percent(shares.max())
    among = most if least == most else f"{least.removesuffix(' %')} to {most}"
    return f"{counted(k, 'token')} {suffice} for {among} of the predictions that gain from the far context"
