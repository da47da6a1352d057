"""What a model's chosen tokens are worth to that model itself: the rows that tables and figures tell of.

Results hold more: the same tokens tried on other models (`--judge-with`), k* by two criteria, and the
controls `random` and `nearest` at more numbers of tokens than were asked for. Whoever means one of these says
so.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from pipeline.influence.rules import CONTROLS, RULES
from pipeline.results.folder import read_artefact, read_settings
from pipeline.results.names import DIVERGENCE, LOSS

PREFERRED_RULES = (
    "leave_one_out_divergence", "banzhaf_divergence", "add_one_in_divergence", "greedy_divergence",
    "gradient_divergence", "attention",
)  # fmt: skip
"""None sees the answer; first the one that stood the trial of the measures (LOG, 2026-11-22)."""


def read_sparse_losses(
    results: Path,
    columns: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
    *,
    every_judge: bool = False,
    every_k: bool = False,
) -> pd.DataFrame:
    """Rows of sparse_context_losses: judged by the model that chose, at the k that were asked for.

    Args:
        results, columns, only: as `read_artefact` takes them.
        every_judge: the rows of other judges too.
        every_k: the controls' further k too, up to the whole far context.

    Raises:
        InputError: as `read_artefact`.
    """
    asked = {} if every_k else asked_ks(results)
    further = [] if every_judge else ["judge"]
    if any(asked.values()):
        further.append("k")
    rows = _read_with(results, "sparse_context_losses", columns, only, further)
    is_wanted = pd.Series(True, index=rows.index)
    if not every_judge:
        is_wanted &= is_own(rows)
    for model, ks in asked.items():
        if ks:
            is_wanted &= (rows["model"] != model) | rows["k"].isin(ks)
    return _only_columns(rows[is_wanted], columns)


def read_sparsity(
    results: Path,
    criterion: str = LOSS,
    columns: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> pd.DataFrame:
    """Rows of dependency_sparsity: k* of each target by one criterion, for the model that chose.

    Args:
        results, columns, only: as `read_artefact` takes them.
        criterion: of `pipeline.results.names`; rows of before there were two are of the loss.

    Raises:
        InputError: as `read_artefact`.
    """
    rows = _read_with(results, "dependency_sparsity", columns, only, ["judge", "criterion"])
    is_wanted = is_own(rows) & (rows["criterion"].fillna(LOSS) == criterion)
    return _only_columns(rows[is_wanted], columns)


def read_judged_sparsity(results: Path, only: Mapping[str, Sequence[str]] | None = None) -> pd.DataFrame:
    """Rows of dependency_sparsity as another model judges, by the divergence: what stood the trial.

    Args:
        results, only: as `read_artefact` takes them.

    Returns:
        Rows of the first other judge of each model, of rules that choose and never see the answer; none where
        nothing else judged.

    Raises:
        InputError: as `read_artefact`.
    """
    rows = _read_with(results, "dependency_sparsity", None, only, [])
    chooses = ~rows["rule"].isin(CONTROLS) & ~rows["rule"].map(sees_answer).astype(bool)
    rows = rows[~is_own(rows) & (rows["criterion"] == DIVERGENCE) & chooses]
    return rows[rows["judge"] == rows.groupby("model")["judge"].transform("first")].reset_index(drop=True)


def is_own(rows: pd.DataFrame) -> pd.Series:
    """Whether each row is judged by the model that chose; so is all that results of version 1 hold."""
    return rows["judge"].isna() | (rows["judge"] == rows["model"])


def asked_ks(results: Path) -> dict[str, list[int]]:
    """Model -> the numbers of tokens that influential_tokens was asked for; [] where that is not told."""
    settings = read_settings(results, "influential_tokens")
    return {model: sorted(of_model.get("k") or []) for model, of_model in settings.items()}


def sees_answer(rule: str) -> bool:
    """Whether a rule looks at the target's loss; one that is not known is taken to."""
    return rule not in RULES or RULES[rule].sees == "answer"


def needs_null(rule: str) -> bool:
    """Whether what a rule recovers says nothing without its null; of one that is not known, yes."""
    return rule not in RULES or RULES[rule].needs_null


def shown_rule(rules: Iterable[str]) -> str:
    """The rule that a page of one rule tells of: the least fooled, or the first other that is no control."""
    present = list(dict.fromkeys(rules))
    chosen = [rule for rule in (*PREFERRED_RULES, *RULES, *present) if rule in present]
    return next((rule for rule in chosen if rule not in CONTROLS), chosen[0])


def _read_with(
    results: Path,
    artefact: str,
    columns: Sequence[str] | None,
    only: Mapping[str, Sequence[str]] | None,
    further: Sequence[str],
) -> pd.DataFrame:
    wanted = None if columns is None else list(dict.fromkeys([*columns, *further]))
    return read_artefact(results, artefact, wanted, only)


def _only_columns(rows: pd.DataFrame, columns: Sequence[str] | None) -> pd.DataFrame:
    names = list(rows) if columns is None else ["model", *(name for name in columns if name != "model")]
    return rows[names].reset_index(drop=True)
