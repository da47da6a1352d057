"""How scores become chosen tokens; tokens that earlier results chose (`influential_tokens.py --choices`).

No torch here: a refusal is quick.
"""

import argparse
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from pipeline.cli import InputError
from pipeline.measuring.flags import ContextLengths
from pipeline.results.read import read_artefact, read_made_by, sources
from pipeline.results.versions import sha256_of_files
from pipeline.text.folder import TokenizedData

STAGE = "influential_tokens"
Choices = Mapping[str, dict[str, np.ndarray]]
"""Far context -> rule -> the chunk's chosen positions, most influential first: int64 [T, K]."""


def ranked(scores_TF: np.ndarray, max_k: int) -> np.ndarray:
    """Positions of the `max_k` largest scores, largest first, the nearer of equals first: int64 [T, K].

    NaN is no candidate.
    """
    # A stable sort keeps the order of equals, so sorting from the nearest token on breaks ties rightly.
    nearest_first_TF = np.where(np.isnan(scores_TF), -np.inf, scores_TF)[:, ::-1]
    order_TK = np.argsort(-nearest_first_TF, axis=1, kind="stable")[:, :max_k]
    return scores_TF.shape[1] - 1 - order_TK


def settings_of_choices(arguments: argparse.Namespace) -> dict[str, Any]:
    """How the tokens of --choices were chosen; sets `arguments.choices_of`, and refuses what does not fit."""
    found = read_made_by(arguments.choices, STAGE)
    name = arguments.choices_of or next(iter(found), None)
    if name not in found or (arguments.choices_of is None and len(found) > 1):
        raise InputError(
            f"--choices {arguments.choices} holds choices of {', '.join(found) or 'no model'}; name one with"
            " --choices-of"
        )
    arguments.choices_of, made_by = name, found[name]
    settings: dict[str, Any] = made_by["settings"]
    data = TokenizedData.open(arguments.data)
    if made_by["inputs"]["evaluation_documents"] != data.evaluation_sha256:
        raise InputError(f"--choices {arguments.choices} are of another text than that of {arguments.data}")
    # As many documents: of fewer, the last one's null would be another document.
    lengths = [num for num in data.evaluation_lengths() if num >= arguments.long_context_length]
    asked = vars(arguments) | {"num_documents": len(lengths[: arguments.max_documents])}
    for setting in (
        "short_context_length", "long_context_length", "targets_per_chunk", "last_tokens",
        "max_chunks_per_document", "num_documents",
    ):  # fmt: skip
        if (theirs := settings.get(setting)) != asked[setting]:
            raise InputError(
                f"--choices were made with {setting} {theirs}, here it is {asked[setting]}: make them equal"
            )
    if arguments.k and arguments.k[-1] > settings["k"][-1]:
        raise InputError(f"--k {arguments.k[-1]} is more than the {settings['k'][-1]} tokens of --choices")
    if unknown := set(arguments.rules or ()) - set(settings["rules"]):
        raise InputError(f"--choices have no rule {min(unknown)}; they have {', '.join(settings['rules'])}")
    return settings


def read_choices(
    arguments: argparse.Namespace, lengths: ContextLengths
) -> dict[tuple[str, int], dict[str, dict[str, np.ndarray]]]:
    """Document and chunk -> `Choices`, positions counted from the start of what is read of the chunk."""
    keys = ["document_id", "chunk_index", "far_context", "rule"]
    order = [*keys, "target_position", "rank"]
    only = {"model": [arguments.choices_of], "rule": arguments.rules}
    rows = read_artefact(arguments.choices, STAGE, [*order, "context_position"], only).sort_values(order)
    skipped = arguments.long_context_length - lengths.long_context_length
    choices: dict[tuple[str, int], dict[str, dict[str, np.ndarray]]] = {}
    for key, of_rule in rows.groupby(keys, sort=False):
        document, chunk, far_context, rule = cast("tuple[str, int, str, str]", key)
        start = chunk * arguments.long_context_length + skipped
        positions_TK = of_rule["context_position"].to_numpy().reshape(lengths.targets_per_chunk, -1) - start
        choices.setdefault((document, chunk), {}).setdefault(far_context, {})[rule] = positions_TK
    return choices


def choices_sha256(arguments: argparse.Namespace) -> str:
    """Of the files that hold the chosen tokens."""
    files = sources(arguments.choices, STAGE, [arguments.choices_of])
    return sha256_of_files(*(file.path for file in files))
