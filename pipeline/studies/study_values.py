"""Values of a study that could not be meant, refused when its file is read: numbers, names, what is empty."""

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Any

from pipeline.errors import InputError, unknown_name
from pipeline.studies.study_fields import ANALYSING, MEASURING, Evaluation, Study, TextStudy
from pipeline.studies.synthetic_fields import SyntheticStudy

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SHARES = ("evaluation_fraction", "kept_fraction")
_MAY_BE_ZERO = ("seed", "seeds", "test_seed", *_SHARES)
_MAY_BE_EMPTY = ("overrides", "influential_models", "stages", "further_source", "judge_with")
_TAKEN = ("data", "models", "results", "figures", "logs")
"""Folders of a run: no evaluation may be named so."""


def refuse_bad_values(study: Study) -> None:
    """Refuse what needs no look at any file.

    Raises:
        InputError: names the field, its value and what would be right.
    """
    _refuse_values("", study, ("run", "threads"))
    if isinstance(study, SyntheticStudy):
        _refuse_values_of_tasks(study)
    elif isinstance(study, TextStudy):
        _refuse_values_of_text(study)


def _refuse_values_of_text(study: TextStudy) -> None:
    for size_name, size in study.sizes.items():
        _refuse_values(f"sizes.{size_name}.", size)
    for model_name, model in study.models.items():
        _refuse_values(f"models.{model_name}.", model)
    _refuse_values("slurm.", study.slurm)
    _refuse_values("data.", study.data)
    if study.planted is not None:
        _refuse_values("planted.", study.planted)
    for name, evaluation in study.evaluations.items():
        of = f"further_evaluations.{name}." if name else "evaluation."
        _refuse_values(of, evaluation)
        if evaluation.data is not None:
            _refuse_values(f"{of}data.", evaluation.data)
        _refuse_of_planted(of, study, evaluation)
    _refuse_names(study)
    for size_name, size in study.sizes.items():
        for model_name in size.models or ():
            if model_name not in study.models:
                raise unknown_name(f"model of sizes.{size_name}", model_name, study.models)
    for evaluation in study.evaluations.values():
        _refuse_unknown_names(study, evaluation)


def _refuse_of_planted(prefix: str, study: TextStudy, evaluation: Evaluation) -> None:
    kind = evaluation.of_planted
    if kind is None:
        return
    if study.planted is None:
        raise InputError(f"{prefix}of_planted is {kind}, but the study plants nothing; give it `planted`")
    if kind not in study.planted.kinds:
        raise unknown_name(f"kind of {prefix}of_planted", kind, study.planted.kinds)
    if evaluation.data is not None:
        raise InputError(f"{prefix}of_planted and {prefix}data are both given; leave one of them out")


def _refuse_values_of_tasks(study: SyntheticStudy) -> None:
    synthetic = study.synthetic
    _refuse_values("synthetic.", synthetic, ("config",))
    if not synthetic.grids:
        raise InputError("synthetic.grids names none; a study has at least one")
    for name, grid in synthetic.grids.items():
        _refuse_values(f"synthetic.grids.{name}.", grid)
    for stage, of_tasks in synthetic.tests.items():
        for task, test in of_tasks.items():
            _refuse_values(f"synthetic.{stage}.{task}.", test)
            for name in test.grids or ():
                if name not in synthetic.grids:
                    raise unknown_name(f"grid of synthetic.{stage}.{task}", name, synthetic.grids)


def _refuse_values(prefix: str, part: Any, names: Iterable[str] | None = None) -> None:
    """Numbers below one, and words and lists that are empty."""
    for name in names or [known.name for known in fields(part)]:
        value = getattr(part, name)
        if value in ("", []) and name not in _MAY_BE_EMPTY:
            raise InputError(f"{prefix}{name} is empty; give it a value, or leave it out")
        for one in value if isinstance(value, list) else [value]:
            if one == "" or one is None and isinstance(value, list):
                raise InputError(f"{prefix}{name} has an empty entry; leave it out")
            if isinstance(one, int | float) and not isinstance(one, bool):
                _refuse_number(f"{prefix}{name}", one, 0 if name in _MAY_BE_ZERO else 1)
        if name in _SHARES and value is not None and not value <= 1:
            raise InputError(f"{prefix}{name} is {value}; it is a share, at most 1")


def _refuse_number(name: str, number: float, least: int) -> None:
    if not least <= number < math.inf:
        raise InputError(f"{name} has {number}; it must be at least {least}")


def _refuse_names(study: TextStudy) -> None:
    """Names that could not be those of folders, or would be shared."""
    kinds: dict[str, Collection[str]] = {
        "sizes": study.sizes,
        "models": study.models,
        "further_evaluations": study.further_evaluations,
    }
    for kind, named in kinds.items():
        if not named and kind != "further_evaluations":
            raise InputError(f"{kind} names none; a study has at least one")
        for name in named:
            if not _NAME.fullmatch(str(name)):
                raise InputError(
                    f"{kind} has the name '{name}', which becomes a folder's: choose letters, digits, and"
                    " _ . - within"
                )
    for name in study.further_evaluations:
        if name in _TAKEN:
            raise InputError(f"an evaluation cannot be named {name}, as the study has a folder {name} itself")
    if not study.sizes_in_names and len(study.sizes) > 1:
        raise InputError(
            f"sizes_in_names is false, and the models of the sizes {', '.join(study.sizes)} would share their"
            " names; leave it out"
        )


def _refuse_unknown_names(study: TextStudy, evaluation: Evaluation) -> None:
    """Of programs and models."""
    for stage in evaluation.stages:
        if stage not in (*MEASURING, *ANALYSING):
            raise unknown_name("stage of an evaluation", stage, (*MEASURING, *ANALYSING))
    reference = [] if evaluation.reference_model is None else [evaluation.reference_model]
    named = (evaluation.models or (), evaluation.influential_models, evaluation.judge_with, reference)
    for name in (name for names in named for name in names):
        if name not in study.models:
            raise unknown_name("model of an evaluation", name, study.models)
    if "influential_tokens" in evaluation.stages and not evaluation.influential_models:
        raise InputError(
            "influential_tokens is to run, but influential_models names no model for it; name one of"
            f" {', '.join(study.models)}"
        )
    for size_name, size in study.sizes.items():
        _refuse_missing_models(size_name, size.models or list(study.models), evaluation)


def _refuse_missing_models(size: str, trained: Collection[str], evaluation: Evaluation) -> None:
    """What an evaluation cannot do without, in a size that trains only some of the study's models."""
    needed: dict[str, Collection[str]] = {"judge_with": evaluation.judge_with}
    if evaluation.reference_model is not None:
        needed["reference_model"] = [evaluation.reference_model]
    for field, names in needed.items():
        for name in names:
            if name not in trained:
                raise InputError(
                    f"{field} names {name}, which sizes.{size}.models leaves out; add it there, or name one"
                    f" of {', '.join(trained)}"
                )
    asked: dict[str, Collection[str]] = {"models": evaluation.models or trained}
    if "influential_tokens" in evaluation.stages:
        asked["influential_models"] = evaluation.influential_models
    for field, names in asked.items():
        if not set(names) & set(trained):
            raise InputError(
                f"{field} names {', '.join(names)}, of which sizes.{size}.models has none; add one"
                " of them there"
            )
