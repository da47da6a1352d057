"""The benchmark of methods: which one finds the few far tokens that a prediction depends on, at what cost.

A method is a rule, judged under an intervention by the model that chose, or by another. Of each:

    effect      what its k tokens recover of the gain beyond the null that fits it, by the losses and by the
                divergence; of methods that fit neither answer nor prediction what they recover, which foreign
                tokens would flatter (`analysis.losses.token_worth`)
    found       of the true dependencies of synthetic examples, and of signs planted in text, the share that
                is among its first as many tokens: precision and recall there, which are the same number
    cost        token-forwards, backward tokens and seconds a target, of the choice alone

Intervals are over documents, or examples.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.losses.token_worth import effects_of_targets, token_effects
from analysis.read import TARGET, interval_columns, interval_over_documents, mean_columns, read_sparse_losses
from analysis.rules.selection import costs_of
from analysis.rules.trial import OTHER, SAME, TriedText, found_signs
from pipeline.cli import InputError
from pipeline.measuring.rules import REMOVE, RULES
from pipeline.results.read import read_artefact, read_settings
from pipeline.results.schemas import DIVERGENCE, LOSS

SORTED_AT_K = 4
"""Methods are ordered by what so many tokens of theirs are worth."""
_METHOD = ["rule", "intervention"]
_FOUND, _ANY = "found_dependencies", ""


def methods_table(
    text: Sequence[Path],
    *,
    judge: str = SAME,
    planted: Sequence[Path] = (),
    signs: Sequence[Mapping[str, Any]] = (),
    synthetic: Path | None = None,
    seconds: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """A row a method and k, the best at k = 4 by the divergence first, within each intervention.

    Args:
        text: results of influential_tokens, a folder an intervention; `planted` the same on planted text.
        judge: who tried the tokens: SAME, the model that chose them, or OTHER.
        signs: where those of the planted text are.
        synthetic: results of found_dependencies.
        seconds: a target, by rule.

    Returns:
        The columns of the schema `methods`. What was not measured is NaN.
    """
    table = pd.concat([_effects(folder, judge) for folder in text], ignore_index=True)
    table["sees"] = [RULES[rule].sees if rule in RULES else "answer" for rule in table["rule"]]
    table = table.merge(_found_signs(planted, signs), how="left", on=_METHOD)
    table = _with_found_dependencies(table, synthetic)
    table["seconds_per_target"] = table["rule"].map(dict(seconds or {})).astype("float64")
    worth = table[table["k"] == SORTED_AT_K].set_index(_METHOD)["divergence_effect"].rename("worth")
    table = table.join(worth, on=_METHOD).sort_values(
        ["intervention", "worth", "rule", "k"], ascending=[True, False, True, True], ignore_index=True
    )
    return table.drop(columns="worth")


def _effects(folder: Path, judge: str) -> pd.DataFrame:
    """By the loss and by the divergence, a row a rule and k, of the first model."""
    losses = read_sparse_losses(folder, every_judge=True)
    model = losses["model"].min()
    losses = losses[losses["model"] == model]
    judges = np.where(losses["judge"].fillna(model) == model, SAME, OTHER) if "judge" in losses else SAME
    losses = losses[judges == judge]
    if losses.empty:
        raise InputError(f"no tokens were tried by {judge} in {folder}")
    effects = token_effects(losses)
    names = [f"{name}{end}" for name in ("gain", "effect") for end in ("", "_low", "_high")]
    parts = [
        effects[effects["criterion"] == criterion].set_index(["rule", "k"])[names].add_prefix(f"{criterion}_")
        for criterion in (LOSS, DIVERGENCE)
    ]
    counts = effects.groupby(["rule", "k"])[["num_targets", "num_documents"]].first()
    table = pd.concat([counts, *parts, _behind_first(losses)], axis=1).reset_index()
    settings = read_settings(folder, "influential_tokens")[str(model)]
    costs = costs_of(settings)
    rule_and_k = list(zip(table["rule"], table["k"], strict=True))
    return table.assign(
        model=model,
        intervention=settings.get("intervention") or REMOVE,
        judge=judge,
        token_forwards_per_target=[costs.token_forwards_per_target(*one) for one in rule_and_k],
        backward_tokens_per_target=[costs.backward_tokens_per_target(rule) for rule, _ in rule_and_k],
    )


def _behind_first(losses: pd.DataFrame) -> pd.DataFrame:
    """What the rule that is first at k = 4 is worth beyond each rule, target by target: by rule and k."""
    effects = effects_of_targets(losses, DIVERGENCE)
    means = effects[effects["k"] == SORTED_AT_K].groupby("rule")["effect"].mean()
    columns = ["behind_first", "behind_first_low", "behind_first_high"]
    rows = []
    for k, of_k in effects.groupby("k"):
        effect = of_k.pivot(index=list(TARGET), columns="rule", values="effect")
        for rule in effect if len(means) else ():
            behind = (effect[means.idxmax()] - effect[rule]).dropna().reset_index(name="behind_first")
            rows.append({"rule": rule, "k": k} | mean_columns(behind, "behind_first"))
    return pd.DataFrame(rows, columns=["rule", "k", *columns]).set_index(["rule", "k"])


def _found_signs(planted: Sequence[Path], signs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row a rule and intervention: the share of signs found."""
    columns = ["found_signs", "found_signs_low", "found_signs_high"]
    if not planted:
        return pd.DataFrame(columns=[*_METHOD, *columns]).astype(dict.fromkeys(columns, "float64"))
    found = found_signs(TriedText.of(planted), signs)
    return found.rename(columns=lambda name: str(name).replace("found", "found_signs", 1))[
        [*_METHOD, *columns]
    ]


def _with_found_dependencies(table: pd.DataFrame, synthetic: Path | None) -> pd.DataFrame:
    """The share of true dependencies among the first as many tokens, of all tasks and models that learnt."""
    found: dict[tuple[str, str], dict[Any, float]] = {}
    if synthetic is not None:
        rows = read_artefact(synthetic, "found_dependencies")
        rows = rows[rows["is_learnt"] & (rows["rank"] <= rows["num_dependencies"])]
        example = rows["model"] + rows["size"].astype(str) + rows["example_index"].astype(str)
        rows = rows.assign(example=example, intervention=rows["intervention"].fillna(_ANY))
        for (rule, intervention), of_method in rows.groupby(_METHOD):
            interval = interval_over_documents(of_method["example"], of_method["is_dependency"])
            found[str(rule), str(intervention)] = interval_columns(_FOUND, interval)
    nothing: dict[Any, float] = dict.fromkeys((_FOUND, f"{_FOUND}_low", f"{_FOUND}_high"), np.nan)
    columns = [
        found.get((rule, intervention)) or found.get((rule, _ANY)) or nothing
        for rule, intervention in zip(table["rule"], table["intervention"], strict=True)
    ]
    return table.join(pd.DataFrame(columns, index=table.index))


def read_seconds(path: Path) -> dict[str, float]:
    """Seconds a target, by rule, as tests/benchmarks/method_seconds.py wrote them.

    Raises:
        InputError: the file is not of that kind.
    """
    try:
        seconds = json.loads(path.read_text(encoding="utf-8"))["seconds_per_target"]
        return {str(rule): float(value) for rule, value in seconds.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is not what tests/benchmarks/method_seconds.py --out writes; run that again"
        ) from error


_ROW_HEIGHT, _FRAME_HEIGHT = 0.21, 1.2  # inches
_WORTH = "divergence_effect"
_TRUTHS = {"found_signs": "planted signs", "found_dependencies": "synthetic tokens"}


def methods_figure(table: pd.DataFrame) -> Figure:
    """A row a method, at k = 4 or the largest k below it."""
    k = max((k for k in table["k"].unique() if k <= SORTED_AT_K), default=table["k"].min())
    of_k = table[table["k"] == k]
    rows = of_k.iloc[::-1].reset_index(drop=True)
    found = [name for name in _TRUTHS if rows[name].notna().any()]
    height = _FRAME_HEIGHT + _ROW_HEIGHT * len(rows)
    figure, axes = drawing.panels(2 if found else 1, height)
    worth, *truth = axes
    places, styles = np.arange(len(rows)), [drawing.rule_style(rule).measured for rule in rows["rule"]]
    drawing.draw_points(worth, places, rows, _WORTH, styles)
    worth.set_xlabel(f"worth of {drawing.counted(int(k), 'token')}\nto the prediction (nats)")
    for ax in truth:
        for name in found:  # where two are known, the second small and grey below the first
            is_second = name != found[0]
            marks = [drawing.Style(drawing.GREY, "|").measured] * len(rows) if is_second else styles
            drawing.draw_points(ax, places - 0.3 * is_second, rows, name, marks)
        first, *others = (_TRUTHS[name] for name in found)
        ax.set_xlabel("\n".join([f"share found of {first}", *(f"(grey: of {other})" for other in others)]))
        ax.set_xlim(-0.05, 1.05)
    for ax in axes:
        ax.axvline(0, color=drawing.GREY, linewidth=0.8, linestyle=":")
        ax.set_ylim(-0.7, len(rows) - 0.3)
        ax.set_yticks([])
    worth.set_yticks(range(len(rows)), [_label(row) for row in rows.to_dict("records")])
    best = of_k.iloc[0]
    judge = "another seed" if best["judge"] == OTHER else "the model that chose"
    told = f"tried by {judge}", f"intervention: {best['intervention']}"
    brackets = "in brackets: what the choice sees, token-forwards a target"
    title = f"What are the {drawing.counted(int(k), 'token')} of each method worth to the prediction?"
    drawing.put_title(figure, title, drawing.sample_size(rows), *told, brackets, drawing.BARS)
    return figure


def _label(row: Any) -> str:
    cost = row["token_forwards_per_target"]
    return f"{drawing.rule_text(row['rule'])} ({row['sees']}{f', {cost:,.0f}' if cost else ''})"
