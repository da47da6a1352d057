"""The drawing of losses against the length of the context: tables of `mean_losses` in, Figures out."""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from analysis.figure_texts import LineEnd, label_line_ends, name_place, put_title
from analysis.figures import TEXT_WIDTH, draw_with_bars, panels
from analysis.palette import BLACK
from analysis.roles import Role, common_size
from analysis.titles import BARS, is_above, is_below, sample_size, subtitle

_BESIDE = 1.03  # factor on a logarithmic axis between the bars of models


def lengths_figure(
    differences: pd.DataFrame, changes: pd.DataFrame, roles: Mapping[str, Role], train_lengths: Iterable[int]
) -> Figure:
    """Loss of every model against the context it is given, less that of a reference model.

    Args:
        differences: `mean_losses.losses_beside_reference`.
        changes: `mean_losses.losses_by_context_length`, from the same shortest length on; for the title.
        roles: of the models.
        train_lengths: tokens that models were trained at, which are marked.
    """
    figure, ax = panels(1, 1, TEXT_WIDTH, 3.4)
    models = list(dict.fromkeys(differences["model"]))
    for place, model in enumerate(models):
        line = differences[differences["model"] == model].sort_values("context_length")
        x = line["context_length"] * _BESIDE ** (place - (len(models) - 1) / 2)
        draw_with_bars(ax, x, line, "difference", **roles[model].look.measured)
    ax.axhline(0, color=BLACK, linewidth=0.6)
    ax.set_xscale("log", base=2)
    lengths = sorted(differences["context_length"].unique())
    ticks = legible_ticks(lengths)
    ax.set_xticks(ticks, [str(length) for length in ticks])
    ax.minorticks_off()
    ax.set_xlabel("context given (tokens)")
    reference, shortest = _reference(differences)
    ax.set_ylabel(f"loss (nats), less that of\n{roles[reference].words}\ngiven {shortest} tokens")
    for length in sorted(set(train_lengths)):
        name_place(ax, length, f"trained at {length}")
    last = differences[differences["context_length"] == lengths[-1]].to_dict("records")
    label_line_ends(
        ax,
        [
            LineEnd(lengths[-1], row["difference"], roles[row["model"]].words, roles[row["model"]].look.color)
            for row in last
        ],
    )
    told = [
        sample_size(differences),
        common_size(roles[model] for model in models),
        f"{BARS}, of the difference",
    ]
    put_title(figure, lengths_title(changes, roles), subtitle(*told))
    return figure


def _reference(differences: pd.DataFrame) -> tuple[str, int]:
    """The model and length that are 0 by definition."""
    shortest = differences[differences["context_length"] == differences["context_length"].min()]
    row = shortest.loc[(shortest["difference"].abs() + shortest["difference_high"].abs()).idxmin()]
    return str(row["model"]), int(row["context_length"])


def lengths_title(changes: pd.DataFrame, roles: Mapping[str, Role]) -> str:
    """Who loses and who gains from the shortest context to the longest, as far as each interval tells.

    Args:
        changes: `mean_losses.losses_by_context_length`.
        roles: of the models.
    """
    lengths = sorted(changes["context_length"].unique())
    longest = changes[changes["context_length"] == lengths[-1]]
    worse = [row["model"] for row in longest.to_dict("records") if is_above(row["loss_change_low"])]
    better = [row["model"] for row in longest.to_dict("records") if is_below(row["loss_change_high"])]
    tokens = f"{lengths[-1]:,} tokens"
    if len(worse) == len(longest) > 1:
        return f"Every model is worse with {tokens} than with {lengths[0]}"
    if len(better) == len(longest) > 1:
        return f"Every model is better with {tokens} than with {lengths[0]}"
    said = [
        f"{verb} models {_named(models, longest['model'], roles)}"
        for verb, models in (("help", better), ("hurt", worse))
        if models
    ]
    if not said:
        return f"No model is clearly better or worse with {tokens} than with {lengths[0]}"
    return f"{tokens} instead of {lengths[0]} {', and '.join(said)}"


def _named(models: Sequence[str], among: Iterable[str], roles: Mapping[str, Role]) -> str:
    """The models in words; without the seed where all that were trained alike are among them."""

    def training(model: str) -> str:
        return roles[model].words.partition(", seed")[0]

    split = {training(model) for model in among if model not in models}
    names = [roles[model].words if training(model) in split else training(model) for model in models]
    return " and ".join(name.replace(", PoSE", " with PoSE") for name in dict.fromkeys(names))


def legible_ticks(lengths: Iterable[int]) -> list[int]:
    """The lengths to label, the longest first among them: none so near the next that their labels touch."""
    ticks: list[int] = []
    for length in sorted(lengths, reverse=True):
        if not ticks or ticks[-1] >= 1.45 * length:
            ticks.append(int(length))
    return ticks[::-1]
