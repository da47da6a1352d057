"""What a notebook needs and results may lack; a notebook that lacks something is skipped, and says what."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from analysis.tokens.token_categories import CATEGORIES_FILE
from pipeline.influence.rules import CONTROLS
from pipeline.results.folder import artefacts_in, read_artefact, read_model_facts
from pipeline.text.manifest import MANIFEST_FILE

_Need = Callable[[argparse.Namespace], str | None]
"""What lacks, for the arguments of run_notebooks.py; None where nothing does."""


def what_lacks(notebook: str, arguments: argparse.Namespace) -> str | None:
    """What the notebook of this name would need and the results lack; None where it can be executed.

    Args:
        notebook: its name.
        arguments: of run_notebooks.py.
    """
    return _NEEDS[notebook](arguments) if notebook in _NEEDS else None


def compares_rules(results: Path) -> bool:
    """Whether results hold selection rules to compare: several beside the controls.

    Raises:
        InputError: no results of influential tokens.
    """
    rules = read_artefact(results, "sparse_context_losses", ["rule"])["rule"]
    return len(set(rules) - set(CONTROLS)) >= 2


def compares_scales(folders: Sequence[Path]) -> bool:
    """Whether results folders tell of models of several sizes or training steps."""
    facts = [
        of_model for folder in folders for of_model in read_model_facts(folder, "loss_differences").values()
    ]
    return len({(of_model.get("num_parameters"), of_model.get("train_step")) for of_model in facts}) >= 2


def _all(*needs: _Need) -> _Need:
    """All of these; the first that lacks is told."""
    return lambda arguments: next((lacks for need in needs if (lacks := need(arguments))), None)


def _several_rules(arguments: argparse.Namespace) -> str | None:
    return None if compares_rules(arguments.results) else "only one selection rule beside the controls"


def _a_target_that_gains(arguments: argparse.Namespace) -> str | None:
    k_star = read_artefact(arguments.results, "dependency_sparsity", ["dependency_sparsity", "is_censored"])
    if (k_star["dependency_sparsity"].notna() | k_star["is_censored"]).any():
        return None
    return "no target gains enough of its far context to have a k*"


def _several_scales(arguments: argparse.Namespace) -> str | None:
    if compares_scales([arguments.results, *arguments.also_results]):
        return None
    return "the results tell of only one model size and training step"


def _artefact(artefact: str) -> _Need:
    """The notebook is about an artefact that not every study measures."""

    def lacks(arguments: argparse.Namespace) -> str | None:
        present = artefacts_in(arguments.results)
        if artefact in present:
            return None
        return f"the results hold no '{artefact}'; they hold {', '.join(present) or 'nothing'}"

    return lacks


def _text_as(*files: str) -> _Need:
    """The text that was measured, or what is kept in its place: a folder of data that holds one of these."""

    def lacks(arguments: argparse.Namespace) -> str | None:
        beside = arguments.results.parent / "data"
        if arguments.data is not None or any((beside / file).is_file() for file in files):
            return None
        return "no tokenized data beside the results; name it with --data"

    return lacks


def _planted_needles(arguments: argparse.Namespace) -> str | None:
    if arguments.needles is not None:
        return None
    return "no planted needles; name the folder of plant_needles with --needles"


_NEEDS: dict[str, _Need] = {
    "loss_differences": _artefact("loss_differences"),
    "long_perplexity": _artefact("loss_differences"),
    "length_losses": _artefact("length_losses"),
    "influential_tokens": _artefact("sparse_context_losses"),
    "dependency_sparsity": _all(_artefact("dependency_sparsity"), _a_target_that_gains),
    "sparsity_and_generalization": _all(_artefact("dependency_sparsity"), _a_target_that_gains),
    "selection_rules": _all(
        _artefact("sparse_context_losses"), _several_rules, _artefact("influential_tokens")
    ),
    "model_scale": _several_scales,
    "sparse_functional_attention": _artefact("sparse_functional_attention"),
    "synthetic_tasks": _artefact("synthetic_accuracy"),
    "found_dependencies": _artefact("found_dependencies"),
    "token_categories": _all(_text_as(MANIFEST_FILE, CATEGORIES_FILE), _artefact("sparse_context_losses")),
    "influential_places": _all(_text_as(MANIFEST_FILE), _artefact("influential_tokens")),
    "needles": _planted_needles,
}
