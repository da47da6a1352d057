"""Key tokens and LongPPL against alpha; tables of `analysis.tokens.long_perplexity` in, a Figure out.

A colour is a model's role. Thick are exact windows, thin LongPPL's shared ones.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from analysis.figure_texts import LineEnd, label_line_ends, put_title
from analysis.figures import TEXT_WIDTH, panels
from analysis.roles import Role, size_words
from analysis.titles import BARS, FEWEST_TARGETS, lie_apart, sample_size, subtitle

_STYLES: dict[str, dict[str, Any]] = {"exact": {}, "windowed": {"linewidth": 0.6, "markersize": 2}}


def long_perplexity_title(judged: pd.DataFrame, evaluator: str, roles: Mapping[str, Role]) -> str:
    """Which other model predicts the evaluator's key tokens best; its own choice flatters the evaluator.

    Read at the largest alpha with `FEWEST_TARGETS` key tokens, of exact windows. It says what is shown where
    the first two models are not clearly apart.

    Args:
        judged: `long_perplexities` at one beta and of this evaluator.
        evaluator: the model that chooses the key tokens.
        roles: of the models.
    """
    rows = judged[(judged["short_context"] == "exact") & (judged["model"] != evaluator)]
    rows = rows[rows["num_key_tokens"] >= FEWEST_TARGETS].dropna(subset="long_perplexity_low")
    rows = rows[rows["alpha"] == rows["alpha"].max()].sort_values("long_perplexity")
    ends = [[row["long_perplexity_low"], row["long_perplexity_high"]] for row in rows.to_dict("records")]
    if len(rows) < 2 or not lie_apart(*ends[:2]):
        return "How many tokens need their long context, and their perplexity"
    best = rows.iloc[0]
    return (
        f"Of the other models the one {roles[str(best['model'])].words} predicts best the"
        f" {best['num_key_tokens']:,} tokens by which the one {roles[evaluator].words} gains more than"
        f" {best['alpha']:g} nats"
    )


def long_perplexity_figure(
    own: pd.DataFrame, judged: pd.DataFrame, evaluator: str, roles: Mapping[str, Role]
) -> Figure:
    """Two panels against alpha: each model's own key tokens, and LongPPL over those of one evaluator.

    Models of another size than the evaluator are left out.

    Args:
        own: `long_perplexities` at one beta, each model its own evaluator.
        judged: the same of one evaluator.
        evaluator: its name.
        roles: of the models.
    """
    size = roles[evaluator].num_parameters
    alike = [model for model, role in roles.items() if role.num_parameters == size]
    own, judged = (table[table["model"].isin(alike)] for table in (own, judged))
    figure, (count_ax, perplexity_ax) = panels(1, 2, TEXT_WIDTH, 2.8)
    key_tokens_against_alpha(own, roles, count_ax)
    label_line_ends(perplexity_ax, long_perplexity_against_alpha(judged, roles, perplexity_ax))
    is_shared = "windowed" in set(own["short_context"])
    told = (f"key tokens of “{roles[evaluator].words}”", "thin: shared windows" if is_shared else "", BARS)
    parts = sample_size(own), size_words(size), f"beta = {own['beta'].iloc[0]:g} nats", *told
    put_title(figure, long_perplexity_title(judged, evaluator, roles), subtitle(*parts))
    return figure


def key_tokens_against_alpha(perplexities: pd.DataFrame, roles: Mapping[str, Role], ax: Axes) -> None:
    """How many targets are key tokens, a line a model and kind of window.

    Args:
        perplexities: `long_perplexity.long_perplexities` at one beta, each model its own evaluator.
        roles: of the models.
        ax: to draw on.
    """
    for (model, kind), line in perplexities.groupby(["model", "short_context"]):
        # Zero has no place on a logarithmic axis: there the line ends.
        seen = line[line["num_key_tokens"] > 0]
        style = roles[str(model)].look.measured | _STYLES[str(kind)]
        ax.plot(seen["alpha"], seen["num_key_tokens"], **style)
    _logarithmic(ax)
    ax.set_xlabel("alpha, least gain (nats)")
    ax.set_ylabel("key tokens of each model")


def long_perplexity_against_alpha(
    perplexities: pd.DataFrame, roles: Mapping[str, Role], ax: Axes
) -> list[LineEnd]:
    """LongPPL, a line a model and kind of window; bars of exact windows; what each is called.

    Args:
        perplexities: `long_perplexity.long_perplexities` at one beta and of one evaluator.
        roles: of the models.
        ax: to draw on.
    """
    ends = []
    for (model, kind), line in perplexities.groupby(["model", "short_context"]):
        role = roles[str(model)]
        values = _floats(line["long_perplexity"])
        ax.plot(line["alpha"], values, **role.look.measured | _STYLES[str(kind)])
        if kind == "exact":
            low, high = (_floats(line[f"long_perplexity_{end}"]) for end in ("low", "high"))
            ax.vlines(line["alpha"], low, high, color=role.look.color, linewidth=0.9)
            known = values.dropna()
            if len(known):
                ends.append(
                    LineEnd(line["alpha"][known.index[-1]], known.iloc[-1], role.words, role.look.color)
                )
    _logarithmic(ax)
    ax.set_xlabel("alpha, least gain (nats)")
    ax.set_ylabel("LongPPL")
    return ends


def _logarithmic(ax: Axes) -> None:
    ax.set_yscale("log")
    for set_formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
        set_formatter(LogFormatter())  # 4, not 4 x 10^0


def _floats(column: pd.Series) -> pd.Series:
    return column.astype("float64")  # null becomes NaN, which is not drawn
