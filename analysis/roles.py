"""What stands in a figure, in words: models by how they were trained, selection rules by what they do.

A model's role comes from what its results tell of it (`model_facts`), never from its place
in a list.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.palette import OTHER_MODELS, TRAINED_CONTIGUOUS, TRAINED_LONG, TRAINED_POSE, Look
from pipeline.results.folder import read_model_facts

POSE = "pose"
_RULE_WORDS = {
    "nearest": "nearest tokens",
    "random": "random tokens",
    "input_x_gradient": "input times gradient",
    "leave_one_out_search": "leave one out, searched",
}
_DIVERGENCE = "_divergence"


@dataclass(frozen=True)
class Role:
    """How a model is called and drawn in figures."""

    words: str
    """Such as "trained at 64, PoSE", with its seed where another model was trained alike."""
    look: Look
    num_parameters: int | None
    """None where the results do not tell, as of the length."""
    train_context_length: int | None
    """Tokens that it saw at once in training."""


def model_roles(results: Path, artefact: str) -> dict[str, Role]:
    """Model -> its role, of all models of an artefact.

    With PoSE a model is trained short. Of the others, those are trained long that saw as many tokens as any
    model here. Earlier results do not tell how a model was trained: it has its name, and a look of its own.

    Raises:
        InputError: the artefact's files are damaged or not complete.
    """
    facts = read_model_facts(results, artefact)
    lengths = [of_model.get("train_context_length") or 0 for of_model in facts.values()]
    roles = {}
    for model, of_model in facts.items():
        look = _look(of_model, max(lengths), sorted(facts).index(model))
        told = (of_model.get(name) for name in ("num_parameters", "train_context_length"))
        roles[model] = Role(_words(model, facts), look, *told)
    return roles


def _look(facts: dict[str, Any], longest: int, place: int) -> Look:
    length = facts.get("train_context_length")
    if length is None:
        return OTHER_MODELS[place % len(OTHER_MODELS)]
    if facts.get("position_scheme") == POSE:
        return TRAINED_POSE
    return TRAINED_LONG if length == longest else TRAINED_CONTIGUOUS


def _words(model: str, facts: dict[str, dict[str, Any]]) -> str:
    told = facts[model]
    if told.get("train_context_length") is None:
        return re.sub(r"-seed(\d+)$", r", seed \1", model).replace("-", " ").replace("_", " ")
    names = ("train_context_length", "position_scheme", "num_parameters", "train_step")
    alike = [other for other in facts if all(facts[other].get(name) == told.get(name) for name in names)]
    scheme = ", PoSE" if told.get("position_scheme") == POSE else ""
    seed = f", seed {told['seed']}" if len(alike) > 1 and told.get("seed") is not None else ""
    return f"trained at {told['train_context_length']}{scheme}{seed}"


def rule_words(rule: str) -> str:
    """A selection rule's name in words: `leave_one_out_divergence` is "leave one out, by divergence"."""
    if rule in _RULE_WORDS:
        return _RULE_WORDS[rule]
    if rule.endswith(_DIVERGENCE):
        return f"{rule_words(rule.removesuffix(_DIVERGENCE))}, by divergence"
    return rule.replace("_", " ")


def common_size(roles: Iterable[Role]) -> str:
    """The size of all these models, such as "2.3 M parameters"; "" where it differs or is not known."""
    sizes = {size_words(role.num_parameters) for role in roles}
    return sizes.pop() if len(sizes) == 1 else ""


def size_words(num_parameters: int | None) -> str:
    """A model's size, such as "2.3 M parameters"; "" where it is not known."""
    return "" if num_parameters is None else f"{num_parameters / 1e6:.2g} M parameters"
