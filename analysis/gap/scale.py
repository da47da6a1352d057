"""Dependency sparsity and generalization gap by model size and training step, over several results folders.

The files of a stage tell each model's size, training step and training length (`model_facts`). Models of one
folder, size and step are compared with each other: k* is read from the first long-trained one that has
influential tokens, the gap from the last long-trained one, best another seed, to each short-trained one.

What a larger model has beyond a smaller one, on the targets that both measured.

Intervals of two sizes that overlap say little: both hold what a document does to either model. Here the
targets are the same ones and documents are resampled for both at once, so what they share cancels.

The drawing of what changes with a model's size: tables of `model_scale` in, slope graphs out.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.drawing import (
    BARS,
    BLACK,
    POSE,
    TEXT_WIDTH,
    TRAINED_CONTIGUOUS,
    TRAINED_LONG,
    TRAINED_POSE,
    LineEnd,
    Look,
    draw_with_bars,
    label_line_ends,
    lie_apart,
    name_level,
    panels,
    percent,
    put_title,
    rule_look,
    rule_words,
    sample_size,
    size_words,
    subtitle,
)
from analysis.gap.gaps import generalization_gaps, shares_of_gaining_targets
from analysis.gap.slopes import cluster_robust_slope
from analysis.gap.sparsity import read_sparsity_measures, shown_measure
from analysis.losses.token_worth import CRITERIA, NEAREST, effects_of_targets, token_effects
from analysis.read import (
    TARGET,
    interval_columns,
    interval_over_documents,
    joined_on_common,
    needs_null,
    of_targets,
    paired_difference,
    read_sparse_losses,
    sample_counts,
    shown_rule,
)
from pipeline.cli import InputError
from pipeline.results.read import (
    artefacts_in,
    read_artefact,
    read_model_facts,
    read_settings,
    read_settings_of,
)
from pipeline.results.schemas import DIVERGENCE, LOSS
from pipeline.results.statistics import Interval

SIZE, STEP = "num_parameters", "train_step"
NEEDED_FACTS = (SIZE, STEP, "train_context_length")


@dataclass(frozen=True)
class ComparedModels:
    """Models of one folder, size and training step."""

    results: Path
    num_parameters: int
    train_step: int
    long_models: tuple[str, ...]
    """Trained at the long context or a longer one, by seed."""
    short_models: tuple[str, ...]
    kinds: tuple[str, ...]
    """How each of `short_models` was trained, such as "64 tokens, pose"."""

    @property
    def labels(self) -> dict[Hashable, Any]:
        """The columns that tell these models in a table."""
        return {"num_parameters": self.num_parameters, "train_step": self.train_step}


def compared_models(folders: Sequence[Path]) -> list[ComparedModels]:
    """Every size and step of several results folders, small to large and early to late.

    Raises:
        InputError: a folder has no loss differences, or its files do not tell size, step or training length.
    """
    facts = pd.DataFrame([row for folder in folders for row in _facts(folder)])
    compared = []
    for key, models in facts.groupby(["results", "num_parameters", "train_step"]):
        results, num_parameters, train_step = cast(tuple[str, int, int], key)
        models = models.sort_values(["seed", "model"])
        longs, shorts = models[models["is_long"]], models[~models["is_long"]]
        of_kind = tuple(longs["model"]), tuple(shorts["model"]), tuple(shorts["kind"])
        compared.append(ComparedModels(Path(results), int(num_parameters), int(train_step), *of_kind))
    return sorted(compared, key=lambda group: (group.num_parameters, group.train_step))


def _facts(results: Path) -> Iterator[dict[str, Any]]:
    all_facts = read_model_facts(results, "loss_differences")
    if not all_facts:
        raise InputError(f"{results} holds no 'loss_differences' results; name folders that do")
    for model, facts in all_facts.items():
        if any(facts.get(name) is None for name in NEEDED_FACTS):
            raise InputError(
                f"{results} does not tell {', '.join(NEEDED_FACTS)} of {model}: it is no OLMo checkpoint of"
                " pretrain.py, or was measured before results told them; measure it again"
            )
        settings = read_settings_of(results, "loss_differences", model)
        is_long = facts["train_context_length"] >= settings["long_context_length"]
        kind = f"{facts['train_context_length']} tokens, {facts.get('position_scheme') or 'contiguous'}"
        yield {**facts, "results": str(results), "model": model, "is_long": is_long, "kind": kind}


def sparsity_by_scale(compared: Sequence[ComparedModels]) -> pd.DataFrame:
    """What the long context gains, and how few far tokens carry it, at every size and step.

    Args:
        compared: of `compared_models`; those without influential tokens of a long-trained model are left out.

    Returns:
        num_parameters, train_step, model, measure (see `sparsity_measures`), k (the middle one of
        those studied), num_targets, num_documents, then with intervals share (of the targets whose long
        context helps, those with k* <= k) and loss_difference (mean of all targets, nats). No rows of
        sizes and steps at which no target gains enough.
    """
    rows: list[dict[Hashable, Any]] = []
    intervals = [f"{name}{end}" for name in ("share", "loss_difference") for end in ("", "_low", "_high")]
    columns = [SIZE, STEP, "model", "measure", "k", "num_targets", "num_documents", *intervals]
    for group in compared:
        found = measured_sparsity(group)
        if found is None:
            continue
        model, measured, studied_ks = found
        gains = read_artefact(
            group.results, "loss_differences", [*TARGET, "loss_difference"], {"model": [model]}
        )
        gain = interval_over_documents(gains["document_id"], gains["loss_difference"])
        shares = shares_of_gaining_targets(measured, studied_ks)
        for row in shares[shares["k"] == _middle(studied_ks)].to_dict("records"):
            labels = {**group.labels, "model": model}
            rows.append({**labels, **row, **interval_columns("loss_difference", gain)})
    return pd.DataFrame(rows, columns=columns)


def gains_by_scale(compared: Sequence[ComparedModels]) -> pd.DataFrame:
    """What the long context gains the first long-trained model of every size and step.

    Args:
        compared: of `compared_models`; those without a long-trained model are left out.

    Returns:
        num_parameters, train_step, model, num_targets, num_documents, loss_difference (nats) with its
        interval.
    """
    rows: list[dict[Hashable, Any]] = []
    for group in compared:
        for model in group.long_models[:1]:
            columns = [*TARGET, "loss_difference"]
            targets = read_artefact(group.results, "loss_differences", columns, {"model": [model]})
            gain = interval_over_documents(targets["document_id"], targets["loss_difference"])
            labels = {**group.labels, "model": model, **sample_counts(targets)}
            rows.append(labels | interval_columns("loss_difference", gain))
    return pd.DataFrame(rows)


def carried_by_scale(
    compared: Sequence[ComparedModels], k: int | None = None, targets: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The share of the far context's worth that k tokens carry.

    Where another model judged, it says so, by the divergence; else the model that chose, by its loss, and
    only of rules that need no null.

    Args:
        compared: of `compared_models`; those without influential tokens of a long-trained model are left out.
        k: None is the largest that was studied.
        targets: those that are meant, by the columns of `TARGET`; None is all.

    Returns:
        num_parameters, train_step and the columns of `token_effects.token_effects`: a row a size, step and
        rule; `share` is NaN where the gain is not clear.
    """
    tables = []
    for group in compared:
        found = measured_sparsity(group)
        if found is not None:
            model, _, studied_ks = found
            losses = read_sparse_losses(group.results, only={"model": [model]}, every_judge=True)
            losses = of_targets(losses[losses["k"] == (k or studied_ks[-1])], targets)
            shown = as_another_judges(token_effects(losses))
            labels = {str(name): value for name, value in group.labels.items()}
            tables.append(shown.assign(**labels))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def as_another_judges(effects: pd.DataFrame) -> pd.DataFrame:
    """The rows of one judge and criterion: of the first other judge, by the divergence.

    Where no other judged, the model that chose, by its loss, and only rules that need no null.

    Args:
        effects: rows of one model with judge, criterion and rule.
    """
    others = effects[(effects["judge"] != effects["model"]) & (effects["criterion"] == DIVERGENCE)]
    if len(others):
        return others[others["judge"] == others["judge"].iloc[0]]
    needs_none = ~effects["rule"].map(needs_null).astype(bool)
    return effects[(effects["judge"] == effects["model"]) & (effects["criterion"] == LOSS) & needs_none]


def gaps_by_scale(compared: Sequence[ComparedModels], measure: str | None = None) -> pd.DataFrame:
    """The generalization gap at every size and step, and how much larger it is where k* is large.

    Args:
        compared: of `compared_models`; those without both long- and short-trained models are left out.
        measure: whose k* divides targets into sparse (k* at most the middle studied k) and dense (more, or
            censored); those without a gain are neither. None: `sparsity_measures.shown_measure`.

    Returns:
        num_parameters, train_step, model, kind, num_targets, num_documents, then with intervals
        generalization_gap and dense_minus_sparse (of mean gaps, nats; NaN where k* was not measured);
        is_one_seed: k* and gap are from one model and share its noise.
    """
    rows: list[dict[Hashable, Any]] = []
    for group in compared:
        if not (group.long_models and group.short_models):
            continue
        reference = group.long_models[-1]
        losses = read_artefact(group.results, "loss_differences", [*TARGET, "long_context_loss"])
        gaps = generalization_gaps(losses, short_models=group.short_models, reference_model=reference)
        found = measured_sparsity(group)
        for model, kind in zip(group.short_models, group.kinds, strict=True):
            targets = gaps[gaps["model"] == model]
            gap = interval_over_documents(targets["document_id"], targets["generalization_gap"])
            rows.append(
                {
                    **group.labels, "model": model, "kind": kind, **sample_counts(targets),
                    **interval_columns("generalization_gap", gap),
                    **_dense_minus_sparse(targets, found, measure),
                    "is_one_seed": found is not None and found[0] == reference,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def _dense_minus_sparse(
    targets: pd.DataFrame, found: tuple[str, pd.DataFrame, list[int]] | None, measure: str | None
) -> dict[Hashable, float]:
    """The difference of two means: the slope on a variable of 0 and 1, whose interval knows documents."""
    if found is None:
        return interval_columns("dense_minus_sparse", Interval(np.nan, np.nan, np.nan))
    _, measured, studied_ks = found
    of_measure = measured[measured["measure"] == (measure or shown_measure(measured["measure"]))]
    is_dense = ~(of_measure["dependency_sparsity"] <= _middle(studied_ks))
    of_measure = of_measure.assign(is_dense=is_dense.astype("float64"))
    names = [*TARGET, "dependency_sparsity", "is_censored", "is_dense"]
    chosen = joined_on_common(targets, of_measure[names], TARGET, "targets of the gap and of k*")
    chosen = chosen[chosen["dependency_sparsity"].notna() | chosen["is_censored"]]
    gaps, dense, documents = (
        chosen[name].to_numpy() for name in ("generalization_gap", "is_dense", "document_id")
    )
    slope = cluster_robust_slope(gaps, dense, np.empty((len(chosen), 0)), documents)
    return interval_columns("dense_minus_sparse", slope)


def measured_sparsity(group: ComparedModels) -> tuple[str, pd.DataFrame, list[int]] | None:
    """The first long-trained model with influential tokens, its measures of k*, and the studied k."""
    settings = read_settings(group.results, "influential_tokens")
    model = next((model for model in group.long_models if model in settings), None)
    if model is None or "dependency_sparsity" not in artefacts_in(group.results):
        return None
    measured, sparse = read_sparsity_measures(group.results, model)
    return model, measured, sorted(sparse["k"].unique())


def middle_k(compared: Sequence[ComparedModels]) -> int | None:
    """The middle of the numbers of tokens that the first of them studied; None: none did."""
    found = next((found for group in compared if (found := measured_sparsity(group))), None)
    return None if found is None else _middle(found[2])


def _middle(studied_ks: Sequence[int]) -> int:
    return studied_ks[len(studied_ks) // 2]


def trend_sentences(table: pd.DataFrame, by: str, line: str, value: str, what: str) -> list[str]:
    """From the smallest or earliest to the largest or latest: a sentence a line of a figure.

    Args:
        table: of `sparsity_by_scale` or `gaps_by_scale`.
        by: num_parameters or train_step.
        line: the column that tells lines apart.
        value: the column with the intervals.
        what: what it is, in words.
    """
    sentences = []
    for name, rows in table.dropna(subset=f"{value}_low").groupby(line, sort=False):
        rows = rows.sort_values(by)
        first, last = rows.iloc[0], rows.iloc[-1]
        if first[by] == last[by]:
            continue
        overlap = (
            first[f"{value}_low"] <= last[f"{value}_high"] and last[f"{value}_low"] <= first[f"{value}_high"]
        )
        ends = (Interval(row[value], row[f"{value}_low"], row[f"{value}_high"]) for row in (first, last))
        agreement = "overlap" if overlap else "do not overlap"
        sentences.append(
            f"{name}: {what} is {' and '.join(map(str, ends))} at {first[by]:,} and {last[by]:,}"
            f" {by.replace('num_', '').replace('_', ' ')}; the intervals {agreement}."
        )
    return sentences


LONG_LOSS, GAIN, SHARE = "long_context_loss", "loss_difference", "share"
_LARGER = "_of_larger"


def changes_with_scale(
    compared: Sequence[ComparedModels], targets: pd.DataFrame | None = None
) -> pd.DataFrame:
    """From each size to the next, both at their last step: the difference, paired by target.

    Args:
        compared: of `model_scale.compared_models`; those without a long-trained model are left out.
        targets: those that are meant, by the columns of `TARGET`; None is all that two sizes both measured.

    Returns:
        smaller, larger (numbers of parameters), what (`long_context_loss`, `loss_difference`: means of the
        first long-trained model, nats; `share`: of the far context's worth, as in `carried_by_scale`), rule
        and k of a share (else None), num_targets, num_documents, of_smaller, of_larger (both on these
        targets), then with intervals difference: larger less smaller.
    """
    last: dict[int, ComparedModels] = {}
    for group in compared:
        if group.long_models:
            last[group.num_parameters] = group  # they come from early to late
    rows = []
    for smaller, larger in pairwise(last.values()):
        labels: dict[Hashable, Any] = {"smaller": smaller.num_parameters, "larger": larger.num_parameters}
        changes = (*_changed_losses(smaller, larger, targets), *_changed_shares(smaller, larger, targets))
        rows += [labels | row for row in changes]
    return pd.DataFrame(rows).astype({"k": "Int64"}) if rows else pd.DataFrame()


def _changed_losses(
    smaller: ComparedModels, larger: ComparedModels, targets: pd.DataFrame | None
) -> Iterator[dict[Hashable, Any]]:
    columns = [*TARGET, LONG_LOSS, GAIN]
    first, second = (
        read_artefact(group.results, "loss_differences", columns, {"model": [group.long_models[0]]})
        for group in (smaller, larger)
    )
    both = joined_on_common(first, second, TARGET, "targets of two sizes", ("", _LARGER))
    paired = of_targets(both, targets)
    for what in (LONG_LOSS, GAIN):
        yield _row(paired, {"what": what, "rule": None, "k": None}, what, None)


def _changed_shares(
    smaller: ComparedModels, larger: ComparedModels, targets: pd.DataFrame | None
) -> Iterator[dict[Hashable, Any]]:
    first, second = _effects(smaller), _effects(larger)
    if first is None or second is None:
        return
    both = joined_on_common(first, second, ["rule", "k", *TARGET], "choices of two sizes", ("", _LARGER))
    for (rule, k), choices in of_targets(both, targets).groupby(["rule", "k"], sort=False):
        yield _row(choices, {"what": SHARE, "rule": rule, "k": k}, "effect", "gain")


def _effects(group: ComparedModels) -> pd.DataFrame | None:
    """rule, k, the columns of `TARGET`, effect and gain, as `carried_by_scale` judges."""
    found = measured_sparsity(group)
    if found is None:
        return None
    losses = read_sparse_losses(group.results, only={"model": [found[0]]}, every_judge=True)
    effects = [effects_of_targets(losses, of).assign(criterion=of) for of in CRITERIA]
    return as_another_judges(pd.concat(effects))[["rule", "k", *TARGET, "effect", "gain"]]


def _row(
    paired: pd.DataFrame, labels: dict[Hashable, Any], numerator: str, denominator: str | None
) -> dict[Hashable, Any]:
    first, second = (
        (paired[f"{numerator}{end}"], None if denominator is None else paired[f"{denominator}{end}"])
        for end in ("", _LARGER)
    )
    means: dict[Hashable, Any] = {"of_smaller": _mean_or_ratio(*first), "of_larger": _mean_or_ratio(*second)}
    difference = paired_difference(paired["document_id"], first, second)
    return labels | sample_counts(paired) | means | interval_columns("difference", difference)


def _mean_or_ratio(numerators: pd.Series, denominators: pd.Series | None) -> float:
    return float(numerators.sum() / (len(numerators) if denominators is None else denominators.sum()))


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
