"""The drawing of what changes with a model's size: tables of `model_scale` in, slope graphs out."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_texts import LineEnd, label_line_ends, name_level, put_title
from analysis.figures import TEXT_WIDTH, draw_with_bars, panels
from analysis.generalization.model_scale import SIZE
from analysis.own_measurements import shown_rule
from analysis.palette import BLACK, TRAINED_CONTIGUOUS, TRAINED_LONG, TRAINED_POSE, Look, rule_look
from analysis.roles import POSE, rule_words, size_words
from analysis.titles import BARS, lie_apart, percent, sample_size, subtitle
from analysis.token_effects import NEAREST

_SHARE = "share"


def scale_figure(gains: pd.DataFrame, shares: pd.DataFrame, gaps: pd.DataFrame) -> Figure:
    """Two panels against size: what the far context is worth and short training loses; who carries it.

    Args:
        gains: `model_scale.gains_by_scale`, of one step a size.
        shares: `model_scale.carried_by_scale`, likewise.
        gaps: `model_scale.gaps_by_scale`, likewise.
    """
    figure, (nats_ax, share_ax) = panels(1, 2, TEXT_WIDTH, 3.2)
    lines = [("gain of the\nlong context", TRAINED_LONG, gains.rename(columns=_as_value("loss_difference")))]
    for kind, rows in gaps.groupby("kind", sort=False):
        look = TRAINED_POSE if str(kind).endswith(POSE) else TRAINED_CONTIGUOUS
        length = str(kind).partition(" tokens")[0]
        words = f"gap, trained\nat {length}" + (", PoSE" if look is TRAINED_POSE else "")
        of_a_seed = rows.drop_duplicates(SIZE)  # of several, the first
        lines.append((words, look, of_a_seed.rename(columns=_as_value("generalization_gap"))))
    _lines_by_size(lines, nats_ax, "nats")
    _draw_shares(shares, share_ax)
    put_title(figure, scale_title(gains, shares), subtitle(sample_size(gains), *_by_whom(shares), BARS))
    return figure


def carried_figure(shares: Mapping[str, pd.DataFrame]) -> Figure:
    """A panel a kind of targets: the share that k tokens carry against size, a line a rule.

    Args:
        shares: kind -> `model_scale.carried_by_scale` of its targets, of one step a size.
    """
    figure, axes = panels(1, len(shares), TEXT_WIDTH, 3.2)
    for ax, (kind, rows) in zip(np.atleast_1d(axes), shares.items(), strict=True):
        _draw_shares(rows, ax)
        ax.set_title(f"{kind} ({rows['num_targets'].max():,} targets)")
    every = pd.concat(shares.values())
    put_title(figure, carried_title(shares), subtitle(sample_size(every), *_by_whom(every), BARS))
    return figure


def carried_title(shares: Mapping[str, pd.DataFrame]) -> str:
    """The least and the largest share that chosen tokens carry at any size, kind by kind.

    Args:
        shares: as of `carried_figure`.
    """
    said = []
    for kind, rows in shares.items():
        chosen = rows.loc[rows["rule"] == shown_rule(rows["rule"]), _SHARE].dropna()
        if len(chosen):
            ends = dict.fromkeys(f"{100 * share:.0f}" for share in (chosen.min(), chosen.max()))
            said.append(f"{' to '.join(ends)} % of {kind}")
    if not said:
        return "The share that few tokens carry, by size"
    k = int(next(iter(shares.values()))["k"].iloc[0])
    return f"By size {k} tokens carry {', '.join(said)}"


def _draw_shares(shares: pd.DataFrame, ax: Axes) -> None:
    name_level(ax, 1, "the whole gain", "left")
    ax.set_ylim(min(0, shares[f"{_SHARE}_low"].min() - 0.02), 1.1)
    lines = [
        (
            rule_words(str(rule)).replace(", ", ",\n"),
            rule_look(str(rule)),
            rows.rename(columns=_as_value(_SHARE)),
        )
        for rule, rows in shares.groupby("rule", sort=False)
    ]
    _lines_by_size(lines, ax, f"share of the gain carried by {int(shares['k'].iloc[0])} tokens")


def _by_whom(shares: pd.DataFrame) -> list[str]:
    is_judged = "judge" in shares and (shares["judge"] != shares["model"]).all()
    return ["shares as another seed judges"] if is_judged else []


def scale_title(gains: pd.DataFrame, shares: pd.DataFrame) -> str:
    """How the gain, and the share that the nearest tokens carry, differ between the least and largest size.

    Only intervals that do not touch are told.

    Args:
        gains: `model_scale.gains_by_scale`, of one step a size.
        shares: `model_scale.carried_by_scale`, likewise.
    """
    first, last = _least_and_largest(gains)
    low, high = (size_words(int(row[SIZE])) for row in (first, last))
    said = []
    if _differ(first, last, "loss_difference"):
        worth = f"{first['loss_difference']:.2f} to {last['loss_difference']:.2f} nats"
        said.append(f"the worth of the far context {_verb(first, last, 'loss_difference')} from {worth}")
    nearest = shares[shares["rule"] == NEAREST]
    if len(nearest) > 1 and _differ(*_least_and_largest(nearest), _SHARE):
        first, last = _least_and_largest(nearest)
        carried = f"{percent(first[_SHARE])} to {percent(last[_SHARE])}"
        said.append(
            f"the share that the nearest {int(first['k'])} carry {_verb(first, last, _SHARE)} from {carried}"
        )
    if not said:
        return f"No clear difference between {low} and {high}"
    return f"From {low.removesuffix(' parameters')} to {high} {'; '.join(said)}"


def _least_and_largest(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    rows = rows.sort_values(SIZE)
    return rows.iloc[0], rows.iloc[-1]


def _differ(first: pd.Series, last: pd.Series, value: str) -> bool:
    return lie_apart(*((row[f"{value}_low"], row[f"{value}_high"]) for row in (first, last)))


def _verb(first: pd.Series, last: pd.Series, value: str) -> str:
    return "rises" if last[value] > first[value] else "falls"


def _as_value(name: str) -> dict[str, str]:
    return {f"{name}{end}": f"value{end}" for end in ("", "_low", "_high")}


def _lines_by_size(lines: Sequence[tuple[str, Look, pd.DataFrame]], ax: Axes, label: str) -> None:
    """A line a (words, look, rows with `value` and its interval), evenly spaced sizes, words at its end."""
    sizes = sorted({size for _, _, rows in lines for size in rows[SIZE]})
    ends = []
    for place, (words, look, rows) in enumerate(lines):
        rows = rows.sort_values(SIZE)
        x = np.array([sizes.index(size) for size in rows[SIZE]]) + 0.03 * (place - (len(lines) - 1) / 2)
        draw_with_bars(ax, list(x), rows, "value", **look.measured)
        ends.append(LineEnd(float(x[-1]), float(rows["value"].iloc[-1]), words, look.color))
    ax.set_xticks(range(len(sizes)), [size_words(int(size)).removesuffix(" parameters") for size in sizes])
    ax.set_xlabel("parameters")
    ax.axhline(0, color=BLACK, linewidth=0.6)
    ax.set_xlim(-0.3, len(sizes) - 0.8)
    ax.set_ylabel(label)
    ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
    label_line_ends(ax, ends)
