"""The trial of the measures: which choice of few far tokens tells of the prediction, and which of the search.

A measure is a rule, under an intervention, judged by the model that chose or by another. Asked of each:

    foreign     text whose far context is another document's: k tokens must give nothing beyond the null by
                the losses, whatever k* is counted by. A divergence may be there: models heed foreign tokens.
    planted     answers that 1, 2 or 4 signs decide: which share of them are the rule's first as many, and of
                how many answers k* is just that
    agreement   k* of the same targets by two models that differ in their seed: Spearman's rank correlation
    width       of the interval of the excess on real text: how many documents leave_one_out, judged by the
                loss of the model that chose, would need for as narrow a one, and at how much of its cost

Intervals are over documents. Nats.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.losses.token_worth import token_effects
from analysis.read import (
    TARGET,
    interval_columns,
    interval_over_documents,
    is_own,
    mean_columns,
    read_sparse_losses,
)
from analysis.rules.selection import costs_of
from pipeline.measuring.rules import BACKGROUND, CONTROLS, REMOVE, SUBSTITUTE
from pipeline.results.read import read_artefact, read_settings
from pipeline.results.schemas import LOSS, OWN
from pipeline.results.statistics import Interval

MEASURE = ["rule", "intervention", "judge", "criterion"]
SAME, OTHER = "the same model", "another seed"
OLD_MEASURE = {"rule": "leave_one_out", "intervention": REMOVE, "judge": SAME, "criterion": LOSS}
"""What k* was sorted by so far, and by our reading the paper's kind."""
_NUM_RESAMPLES = 1000


@dataclass(frozen=True)
class TriedText:
    """Results of influential_tokens on one kind of text: a folder an intervention."""

    of_intervention: Mapping[str, Path]

    @classmethod
    def of(cls, folders: Iterable[Path]) -> "TriedText":
        """Told apart by what the stage was asked for."""
        return cls({str(_settings(folder)["intervention"]): folder for folder in folders})

    def effects(self, k: int) -> pd.DataFrame:
        """`token_effects` at one k, a row a measure."""
        tables = []
        for intervention, folder in self.of_intervention.items():
            effects = token_effects(read_sparse_losses(folder, every_judge=True))
            judges = np.where(effects["judge"] == effects["model"], SAME, OTHER)
            tables.append(effects.assign(intervention=intervention, judge=judges))
        table = pd.concat(tables, ignore_index=True)
        first = table["model"].min()  # where two chose, the first: the other is for the agreement
        return table[(table["k"] == k) & (table["model"] == first)]

    def sparsity(self, by: Sequence[str]) -> pd.DataFrame:
        """k* of every target and measure; of one that is censored twice the largest k studied."""
        tables = []
        for intervention, folder in self.of_intervention.items():
            rows = read_artefact(folder, "dependency_sparsity")
            largest = max(_settings(folder)["k"])
            k_star = rows["dependency_sparsity"].astype("float64").where(~rows["is_censored"], 2 * largest)
            judges = np.where(rows["judge"] == rows["model"], SAME, OTHER)
            tables.append(rows.assign(intervention=intervention, judge=judges, k_star=k_star))
        return pd.concat(tables, ignore_index=True)[[*MEASURE, *TARGET, *by, "k_star"]]


def compared_measures(
    text: TriedText, foreign: TriedText, planted: TriedText, signs: Sequence[Mapping[str, Any]], k: int
) -> pd.DataFrame:
    """A row a measure, those first that stand more of the trial, and then whose k* is right more often."""
    on_text = text.effects(k)
    names = ["gain", "recovered", "null_recovered", "excess"]
    columns = [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    table = on_text[[*MEASURE, "num_targets", "num_documents", *columns]]
    foreign_excess = foreign.effects(k)[[*MEASURE, "excess", "excess_low", "excess_high"]]
    table = table.merge(foreign_excess.rename(columns=lambda name: name.replace("excess", "foreign_excess")))
    table = table.merge(found_signs(planted, signs), how="left", on=["rule", "intervention"])
    table = table.merge(sparsity_of_signs(planted, signs), how="left", on=MEASURE)
    table = table.merge(agreement(text), how="left", on=MEASURE)
    table = table.assign(**_widths(table, text, k))
    by_loss = table[table["criterion"] == LOSS].set_index(MEASURE[:-1])
    finds_nothing = (by_loss["foreign_excess_low"] <= 0) & (by_loss["foreign_excess_high"] >= 0)
    table = table.join(finds_nothing.rename("finds_nothing"), on=MEASURE[:-1])
    table["agrees"] = table["agreement_low"] > 0
    table["helps"] = table["excess_low"] > 0
    stands = table[["finds_nothing", "agrees", "helps"]].astype("float64").sum(axis=1)
    order = table.assign(stands=stands).sort_values(
        ["stands", "right_sparsity", "found"], ascending=False, kind="stable"
    )
    return order.drop(columns="stands").reset_index(drop=True)


def found_signs(planted: TriedText, signs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row a rule and intervention: the share of signs that are among the first as many tokens."""
    truth = {(row["document_id"], row["target_position"]): row for row in signs}
    tables = []
    nothing: Mapping[str, Any] = {"num_planted": 0, "planted_positions": ()}
    for intervention, folder in planted.of_intervention.items():
        chosen = read_artefact(folder, "influential_tokens")
        chosen = chosen[chosen["far_context"] == OWN]
        targets = zip(chosen["document_id"], chosen["target_position"], strict=True)
        rows = [truth.get(target, nothing) for target in targets]
        num = np.array([row["num_planted"] for row in rows])
        is_sign = [
            position in row["planted_positions"]
            for row, position in zip(rows, chosen["context_position"], strict=True)
        ]
        chosen = chosen.assign(num_planted=num, is_sign=is_sign, intervention=intervention)
        tables.append(chosen[(num > 0) & (chosen["rank"] <= num)])
    table: list[dict[Hashable, Any]] = []
    for key, of_rule in pd.concat(tables).groupby(["rule", "intervention"]):
        row: dict[Hashable, Any] = dict(zip(("rule", "intervention"), key, strict=True))
        row |= interval_columns("found", interval_over_documents(of_rule["document_id"], of_rule["is_sign"]))
        for num_planted, of_k in of_rule.groupby("num_planted"):
            row[f"found_of_{num_planted}"] = of_k["is_sign"].mean()
        table.append(row)
    names = ["rule", "intervention", "found", "found_low", "found_high"]
    return pd.DataFrame(table) if table else pd.DataFrame(columns=names)


def sparsity_of_signs(planted: TriedText, signs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row a measure: the share of answers whose k* is the number of their signs; none where none has a k*.

    In a background that plants as many signs, an answer has two truths: such documents are left out.
    """
    truth = pd.DataFrame(signs)[["document_id", "target_position", "num_planted"]]
    k_star = planted.sparsity([]).merge(truth, on=["document_id", "target_position"])
    is_doubled = k_star["document_id"].isin(_with_rival_signs(planted, signs))
    k_star = k_star[(k_star["intervention"] != BACKGROUND) | ~is_doubled].dropna(subset="k_star")
    k_star["right_sparsity"] = k_star["k_star"] == k_star["num_planted"]
    rows = [
        dict(zip(MEASURE, key, strict=True)) | mean_columns(of_measure, "right_sparsity")
        for key, of_measure in k_star.groupby(MEASURE)
    ]
    columns = [f"right_sparsity{end}" for end in ("", "_low", "_high")]
    return pd.DataFrame(rows, columns=[*MEASURE, *columns])


def _with_rival_signs(planted: TriedText, signs: Sequence[Mapping[str, Any]]) -> set[str]:
    """Documents whose null or background, the documents that come next by ID, plants as many signs."""
    folder = planted.of_intervention.get(BACKGROUND)
    if folder is None:
        return set()
    num_planted = {row["document_id"]: row["num_planted"] for row in signs}
    ids = sorted(read_artefact(folder, "dependency_sparsity", ["document_id"])["document_id"].unique())
    beside = 1 + int(_settings(folder).get("num_backgrounds") or 1)
    return {
        name
        for index, name in enumerate(ids)
        for step in range(1, beside + 1)
        if num_planted.get(name, 0) == num_planted.get(ids[(index + step) % len(ids)], -1)
    }


def agreement(text: TriedText) -> pd.DataFrame:
    """A row a measure: the rank correlation of two models' k*, over targets where both have one.

    Beside it, of how many targets, and the share of their k* that are censored, and so say little.
    """
    k_star = text.sparsity(["model", "is_censored"]).dropna(subset="k_star")
    rows = []
    for key, of_measure in k_star.groupby(MEASURE):
        by_model = of_measure.pivot_table(index=TARGET, columns="model", values="k_star")
        both = by_model.dropna()
        if both.shape[1] < 2 or len(both) < 3:
            continue
        interval = _rank_correlation(both.iloc[:, 0], both.iloc[:, 1])
        row = dict(zip(MEASURE, key, strict=True)) | interval_columns("agreement", interval)
        is_common = of_measure.set_index(TARGET).index.isin(both.index)
        censored = of_measure.loc[is_common, "is_censored"].mean()
        rows.append({**row, "num_agreement_targets": len(both), "censored": censored})
    columns = ["agreement", "agreement_low", "agreement_high", "num_agreement_targets", "censored"]
    return pd.DataFrame(rows, columns=[*MEASURE, *columns])


def agreement_of_gains(text: TriedText) -> Interval:
    """The same of the loss differences themselves: what the agreement of k* may be held against."""
    folder = next(iter(text.of_intervention.values()))
    rows = read_artefact(folder, "dependency_sparsity")
    rows = rows[is_own(rows)]
    by_model = rows.pivot_table(index=TARGET, columns="model", values="loss_difference").dropna()
    return _rank_correlation(by_model.iloc[:, 0], by_model.iloc[:, 1])


def _rank_correlation(first: pd.Series, second: pd.Series) -> Interval:
    """Spearman's, with the bootstrap's interval over documents; NaN where one side is all the same."""
    ranks = pd.DataFrame({"first": first.rank(), "second": second.rank()})
    groups = list(ranks.groupby(level="document_id").indices.values())
    values = ranks.to_numpy()
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(_NUM_RESAMPLES):
        rows = np.concatenate([groups[index] for index in generator.integers(len(groups), size=len(groups))])
        drawn.append(_correlation(values[rows]))
    low, high = np.nanquantile(drawn, [0.025, 0.975]) if np.isfinite(drawn).any() else (np.nan, np.nan)
    return Interval(_correlation(values), float(low), float(high))


def _correlation(pairs_N2: np.ndarray) -> float:
    return np.nan if (pairs_N2.std(axis=0) == 0).any() else float(np.corrcoef(pairs_N2.T)[0, 1])


def _widths(table: pd.DataFrame, text: TriedText, k: int) -> dict[str, Any]:
    """What each interval is worth in documents of the old measure, and what each measure costs."""
    width = table["excess_high"] - table["excess_low"]
    old_width = width[_is_old(table)].mean()  # of one row; NaN where it was not measured
    costs = {of: costs_of(_settings(folder)) for of, folder in text.of_intervention.items()}
    cost = [
        costs[of].token_forwards_per_target(rule, k)
        for rule, of in zip(table["rule"], table["intervention"], strict=True)
    ]
    documents = table["num_documents"] * (old_width / width) ** 2
    return {"documents_of_the_old": documents, "token_forwards_per_target": cost}


def _settings(folder: Path) -> dict[str, Any]:
    """Of the first model: a study measures all of them alike."""
    return dict(next(iter(read_settings(folder, "influential_tokens").values())))


_IN_THE_PLACE = {
    REMOVE: "nothing in its place",
    SUBSTITUTE: "a token in its place",
    BACKGROUND: "in a background",
}
_PANELS = (
    ("right_sparsity", "k* is the number of planted signs", "share of the answers", None),
    ("agreement", "k* of two seeds agrees", "rank correlation", 0.0),
)
_MOST_ROWS = 10
_ROW_HEIGHT, _FRAME_HEIGHT = 0.36, 0.9  # inches


def _is_old(table: pd.DataFrame) -> pd.Series:
    return (table[list(OLD_MEASURE)] == pd.Series(OLD_MEASURE)).all(axis=1)


def measures_figure(table: pd.DataFrame) -> Figure:
    """Whether k* is right where it is known, and whether two seeds agree: a row a measure."""
    # The best first, of a rule, intervention and judge by the better criterion; and the old, wherever it is.
    best = table[~table["rule"].isin(CONTROLS)].drop_duplicates(MEASURE[:-1])
    rows = pd.concat([best.head(_MOST_ROWS - 1), table[_is_old(table)]]).drop_duplicates(MEASURE)
    rows = rows.iloc[::-1].reset_index(drop=True)
    figure, axes = drawing.panels(len(_PANELS), _FRAME_HEIGHT + _ROW_HEIGHT * len(rows))
    for ax, (name, title, unit, chance) in zip(axes, _PANELS, strict=True):
        styles = [drawing.rule_style(rule).measured | {"linestyle": ""} for rule in rows["rule"]]
        drawing.draw_points(ax, range(len(rows)), rows, name, styles)
        ax.set_title(title, fontsize=8.5, pad=14)
        ax.set_xlabel(unit)
        if chance is not None:
            drawing.name_place(ax, chance, "chance")
        ax.set_ylim(-0.7, len(rows) - 0.3)
        ax.set_yticks([])
    axes[0].set_xlim(0, 1.05)
    axes[0].set_yticks(range(len(rows)), [_label(row) for row in rows.to_dict("records")])
    agreed = rows["num_agreement_targets"].agg(["min", "max"])
    told = f"agreement of {agreed['min']:.0f} to {agreed['max']:.0f} of these targets"
    title = "Which measure counts the tokens that decide, and counts them alike for two seeds?"
    drawing.put_title(figure, title, drawing.sample_size(rows), told, drawing.BARS)
    return figure


def _label(row: Any) -> str:
    stands = row["finds_nothing"] and row["agrees"] and row["helps"]
    is_old = all(row[name] == value for name, value in OLD_MEASURE.items())
    note = " (the paper's kind)" if is_old else "" if stands else " (fails elsewhere)"
    judge = "another seed" if row["judge"] == OTHER else "itself"
    return f"{drawing.rule_text(row['rule'])},\n{_IN_THE_PLACE[row['intervention']]}, judged by {judge}{note}"
