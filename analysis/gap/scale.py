"""Gain, share and generalization gap by model size and training step, over several results folders.

The files of a stage say each model's size, training step and training length (`model_facts`). Models of one
folder, size and step are compared with each other: the gain is that of the first long-trained one, the share
is carried by the tokens of the first one that chose some, the gap is from the last one, best another seed, to
each short-trained one.

What a larger size has beyond a smaller one is measured on the targets of both, and documents are resampled
for both at once: intervals of two sizes that overlap say little, as both hold what a document does to either.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pandas as pd

from analysis.losses.token_worth import CRITERIA, effects_of_targets, token_effects
from analysis.read import (
    TARGET,
    generalization_gaps,
    interval_columns,
    joined_on_common,
    mean_columns,
    needs_null,
    of_targets,
    paired_difference,
    read_sparse_losses,
    sample_counts,
)
from pipeline.cli import InputError
from pipeline.results.read import (
    artefacts_in,
    read_artefact,
    read_model_facts,
    read_settings,
)
from pipeline.results.schemas import DIVERGENCE, LOSS

SIZE, STEP = "num_parameters", "train_step"
NEEDED_FACTS = (SIZE, STEP, "train_context_length")
LONG_LOSS, GAIN, SHARE, GAP = "long_context_loss", "loss_difference", "share", "generalization_gap"
_LARGER = "_of_larger"


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
        """The columns that name these models in a table."""
        return {SIZE: self.num_parameters, STEP: self.train_step}

    @cached_property
    def sparse_losses(self) -> pd.DataFrame | None:
        """Of the first long-trained model that chose tokens, by every judge; None where none did."""
        settings = read_settings(self.results, "influential_tokens")
        model = next((model for model in self.long_models if model in settings), None)
        if model is None or "sparse_context_losses" not in artefacts_in(self.results):
            return None
        return read_sparse_losses(self.results, only={"model": [model]}, every_judge=True)

    def losses(self, *columns: str) -> pd.DataFrame:
        """These columns of loss_differences, of the first long-trained model."""
        only = {"model": [self.long_models[0]]}
        return read_artefact(self.results, "loss_differences", [*TARGET, *columns], only)


def compared_models(folders: Sequence[Path]) -> list[ComparedModels]:
    """Every size and step of several results folders, small to large and early to late.

    Raises:
        InputError: a folder has no loss differences, or its files do not say size, step or training length.
    """
    facts = pd.DataFrame([row for folder in folders for row in _facts(folder)])
    compared = []
    for key, models in facts.groupby(["results", SIZE, STEP]):
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
        settings = read_settings(results, "loss_differences")[model]
        is_long = facts["train_context_length"] >= settings["long_context_length"]
        kind = f"{facts['train_context_length']} tokens, {facts.get('position_scheme') or 'contiguous'}"
        yield {**facts, "results": str(results), "model": model, "is_long": is_long, "kind": kind}


def gains_by_scale(compared: Sequence[ComparedModels]) -> pd.DataFrame:
    """What the long context gains the first long-trained model of every size and step.

    Columns num_parameters, train_step, model, num_targets, num_documents, loss_difference (nats) and its
    interval.
    """
    rows = []
    for group in compared:
        if group.long_models:
            gains = group.losses(GAIN)
            labels = {**group.labels, "model": group.long_models[0], **sample_counts(gains)}
            rows.append(labels | mean_columns(gains, GAIN))
    return pd.DataFrame(rows)


def carried_by_scale(compared: Sequence[ComparedModels], targets: pd.DataFrame | None = None) -> pd.DataFrame:
    """The share of the far context's worth that the most tokens that were studied carry; of targets, or all.

    Where another model judged, it says so, by the divergence; else the model that chose, by its loss, and
    only of rules that need no null.

    Returns:
        num_parameters, train_step and the columns of `token_effects`: a row a size, step and rule; `share` is
        NaN where the gain is not clear.
    """
    tables = []
    for group in compared:
        if (losses := group.sparse_losses) is not None:
            losses = of_targets(losses[losses["k"] == losses["k"].max()], targets)
            labels = {str(name): value for name, value in group.labels.items()}
            tables.append(_as_another_judges(token_effects(losses)).assign(**labels))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _as_another_judges(effects: pd.DataFrame) -> pd.DataFrame:
    """The rows of one judge and criterion, as `carried_by_scale` states them; of one model."""
    others = effects[(effects["judge"] != effects["model"]) & (effects["criterion"] == DIVERGENCE)]
    if len(others):
        return others[others["judge"] == others["judge"].iloc[0]]
    needs_none = ~effects["rule"].map(needs_null).astype(bool)
    return effects[(effects["judge"] == effects["model"]) & (effects["criterion"] == LOSS) & needs_none]


def gaps_by_scale(compared: Sequence[ComparedModels]) -> pd.DataFrame:
    """The generalization gap at every size and step where long- and short-trained models were measured.

    Columns num_parameters, train_step, model, kind, num_targets, num_documents, generalization_gap (nats) and
    its interval.
    """
    rows: list[dict[Hashable, Any]] = []
    for group in compared:
        if group.long_models and group.short_models:
            shorts, reference = group.short_models, group.long_models[-1]
            losses = read_artefact(group.results, "loss_differences", [*TARGET, LONG_LOSS])
            gaps = generalization_gaps(losses, short_models=shorts, reference_model=reference)
            for model, kind in zip(shorts, group.kinds, strict=True):
                targets = gaps[gaps["model"] == model]
                labels = {**group.labels, "model": model, "kind": kind, **sample_counts(targets)}
                rows.append(labels | mean_columns(targets, GAP))
    return pd.DataFrame(rows)


def changes_with_scale(
    compared: Sequence[ComparedModels], targets: pd.DataFrame | None = None
) -> pd.DataFrame:
    """From each size to the next, both at their last step: the difference, paired by target.

    Args:
        compared: of `compared_models`; those without a long-trained model are left out.
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
        first, second = (group.losses(LONG_LOSS, GAIN) for group in (smaller, larger))
        both = joined_on_common(first, second, TARGET, "targets of two sizes", ("", _LARGER))
        both = of_targets(both, targets)
        for what in (LONG_LOSS, GAIN):
            rows.append(labels | {"what": what, "rule": None, "k": None} | _change(both, what, None))
        if smaller.sparse_losses is not None and larger.sparse_losses is not None:
            first, second = _effects(smaller.sparse_losses), _effects(larger.sparse_losses)
            keys = ["rule", "k", *TARGET]
            both = joined_on_common(first, second, keys, "choices of two sizes", ("", _LARGER))
            for (rule, k), choices in of_targets(both, targets).groupby(["rule", "k"], sort=False):
                share = {"what": SHARE, "rule": rule, "k": k}
                rows.append(labels | share | _change(choices, "effect", "gain"))
    return pd.DataFrame(rows).astype({"k": "Int64"}) if rows else pd.DataFrame()


def _effects(losses: pd.DataFrame) -> pd.DataFrame:
    """rule, k, the columns of `TARGET`, effect and gain, as `carried_by_scale` judges."""
    effects = [effects_of_targets(losses, of).assign(criterion=of) for of in CRITERIA]
    return _as_another_judges(pd.concat(effects))[["rule", "k", *TARGET, "effect", "gain"]]


def _change(paired: pd.DataFrame, numerator: str, denominator: str | None) -> dict[Hashable, Any]:
    """of_smaller, of_larger and difference: of the means of `numerator`, or of the ratios of sums."""
    ones = pd.Series(1, paired.index, dtype=paired[numerator].dtype)
    first, second = (
        (paired[f"{numerator}{end}"], ones if denominator is None else paired[f"{denominator}{end}"])
        for end in ("", _LARGER)
    )
    of_smaller, of_larger = (float(above.sum() / below.sum()) for above, below in (first, second))
    difference = paired_difference(paired["document_id"], first, second)
    means: dict[Hashable, Any] = {"of_smaller": of_smaller, "of_larger": of_larger}
    return {**sample_counts(paired), **means, **interval_columns("difference", difference)}
