"""What the explorer shows of a results folder: records, as `pipeline/explorer_page/writing.py` has them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.read import TARGET, read_sparse_losses, read_sparsity, refuse_other_documents, shown_rule
from pipeline.cli import InputError, unknown_name
from pipeline.explorer_page.writing import PAGE_COLUMNS, Groups, Record, chunk_record, grouped
from pipeline.results.read import artefacts_in, read_artefact, read_made_by, read_settings
from pipeline.results.schemas import DIVERGENCE, LOSS, OTHER_DOCUMENT
from pipeline.text.chunks import long_enough_documents
from pipeline.text.folder import EvaluationDocument, TokenizedData
from pipeline.text.tokenizer import DocumentTokenizer

_DOCUMENTS_A_READ = 50
_GEOMETRY = ("short_context_length", "long_context_length", "targets_per_chunk")
_SETTINGS = {
    "loss_differences": _GEOMETRY,
    "influential_tokens": (*_GEOMETRY, "k", "intervention", "recovery_fraction", "minimum_gain"),
}
"""Stage -> what must be the same for all that stands side by side on the page."""


@dataclass(frozen=True)
class Shown:
    """The part of a results folder that is shown."""

    results: Path
    models: list[str]
    """Those with selections first; the others have losses only."""
    rules: list[str]
    """The recommended one first: the page opens with it."""
    document_ids: list[str]
    """In the order of their hashes: the first few are a random sample."""
    num_documents_of_one_stage: int
    """Documents that only one of the two stages has measured, and that are not shown."""
    settings: Mapping[str, Any]
    """That all models share."""
    num_measured: int | None
    """Documents among which each has its null, in their order; None where models differ in it."""


def refuse_missing_artefacts(results: Path) -> None:
    """Refuse a folder without all that the page needs."""
    present = artefacts_in(results)
    missing = [artefact for artefact in PAGE_COLUMNS if artefact not in present]
    if missing:
        raise InputError(
            f"{results} holds no {' and no '.join(missing)}; it holds {', '.join(present) or 'no results'}."
            " The explorer needs the results of the stages loss_differences and influential_tokens"
        )


def choose(
    results: Path, data: TokenizedData, models: Sequence[str] | None, rules: Sequence[str] | None
) -> Shown:
    """What of a results folder can be shown beside `data`: all models and rules where None are named.

    InputError where a model or rule is missing, models were measured with other settings than others or on
    other documents than those of `data`, or nothing is left to show.
    """
    sparsity = read_sparsity(results, columns=["document_id", "rule"])
    losses = read_artefact(results, "loss_differences", ["document_id"])
    choosing = sorted(set(sparsity["model"]))
    models = _named("model", models, [*choosing, *sorted(set(losses["model"]) - set(choosing))])
    sparsity = sparsity[sparsity["model"].isin(models)]
    present_rules = list(dict.fromkeys(sparsity["rule"]))
    recommended_first = sorted(present_rules, key=lambda rule: rule != shown_rule(present_rules))
    rules = _named("rule", rules, recommended_first)
    sparsity = sparsity[sparsity["rule"].isin(rules)]
    losses = losses[losses["model"].isin(models)]
    both = sparsity[["model", "document_id"]].drop_duplicates().merge(losses.drop_duplicates())
    if both.empty:
        raise InputError(
            f"{results} has no document with both loss differences and influential tokens of"
            f" {', '.join(models)}; run both stages on the same documents"
        )
    document_ids = set(both["document_id"])
    of_one_stage = ({*sparsity["document_id"]} | {*losses["document_id"]}) - document_ids
    of_selections = read_settings(results, "influential_tokens")
    numbers = {of.get("num_documents") for model, of in of_selections.items() if model in models}
    return Shown(
        results,
        models,
        rules,
        sorted(document_ids),
        len(of_one_stage),
        _shared_settings(results, data, models),
        numbers.pop() if len(numbers) == 1 else None,
    )


def _named(kind: str, wanted: Sequence[str] | None, present: Sequence[str]) -> list[str]:
    for name in wanted or ():
        if name not in present:
            raise unknown_name(kind, name, present)
    return [name for name in present if wanted is None or name in wanted]


def _shared_settings(results: Path, data: TokenizedData, models: Sequence[str]) -> dict[str, Any]:
    """The settings shown; refuses models that were measured otherwise, or on other documents."""
    shared: dict[str, tuple[Any, str]] = {}
    for stage, names in _SETTINGS.items():
        made_by = read_made_by(results, stage)
        for model in [model for model in made_by if model in models]:
            made = made_by[model]
            here = f"{stage} of model '{model}'"
            refuse_other_documents(results, here, made, data)
            for name in names:
                value = made["settings"].get(name)
                first_value, first = shared.setdefault(name, (value, here))
                if value != first_value:
                    raise InputError(
                        f"{results} mixes configurations: {name} is {first_value} for {first} and {value} for"
                        f" {here}; show models that were measured alike, with --models"
                    )
    return {name: value for name, (value, _) in shared.items()}


def records(
    shown: Shown, document_ids: Sequence[str], data: TokenizedData, tokenizer: DocumentTokenizer
) -> Iterator[Record]:
    """A record a document of `document_ids`; few documents are read at a time."""
    documents = {document.document_id: document for document in data.evaluation_documents()}
    nulls = _nulls(shown, data)
    for start in range(0, len(document_ids), _DOCUMENTS_A_READ):
        batch = list(document_ids[start : start + _DOCUMENTS_A_READ])
        rows = _rows_of(shown, batch)
        for document_id in batch:
            yield _record(shown, documents[document_id], nulls.get(document_id), rows, tokenizer)


def _nulls(shown: Shown, data: TokenizedData) -> dict[str, EvaluationDocument]:
    """Document -> the one that is its null, which comes next among those that were measured."""
    if shown.num_measured is None:
        return {}
    measured = long_enough_documents(data, shown.settings["long_context_length"], shown.num_measured, 0)
    following = [*measured[1:], measured[0]]
    return {document.document_id: null for document, null in zip(measured, following, strict=True)}


def _rows_of(shown: Shown, document_ids: list[str]) -> dict[str, Groups]:
    results = shown.results
    only = {"model": shown.models, "document_id": document_ids}
    of_rules = only | {"rule": shown.rules}
    columns = {artefact: [*TARGET, *names] for artefact, names in PAGE_COLUMNS.items()}
    losses = columns["loss_differences"]
    selected = columns["influential_tokens"]
    k_stars = [
        read_sparsity(results, criterion, columns["dependency_sparsity"], of_rules)
        for criterion in (LOSS, DIVERGENCE)
    ]
    return grouped(
        {
            "loss_differences": read_artefact(results, "loss_differences", losses, only),
            "dependency_sparsity": pd.concat(k_stars),
            "sparse_context_losses": read_sparse_losses(results, columns["sparse_context_losses"], of_rules),
            "influential_tokens": read_artefact(results, "influential_tokens", selected, of_rules),
        }
    )


def _record(
    shown: Shown,
    document: EvaluationDocument,
    null: EvaluationDocument | None,
    rows: dict[str, Groups],
    tokenizer: DocumentTokenizer,
) -> Record:
    chunk_length = shown.settings["long_context_length"]
    indices = sorted({key[1] for key in rows["loss_differences"] if key[0] == document.document_id})
    # From the document's start, as a chunk may begin inside of a character.
    pieces = tokenizer.pieces(document.token_ids[: (indices[-1] + 1) * chunk_length].tolist())
    chunks = []
    for index in indices:
        start = index * chunk_length
        chunk: Record = {"start": start, "pieces": pieces[start : start + chunk_length]}
        key = document.document_id, index
        if null is not None and (null_ids := _null_chunk(null, key, start, chunk_length, rows)) is not None:
            chunk["null"] = {"id": null.document_id, "pieces": tokenizer.pieces(null_ids.tolist())}
        chunks.append(chunk | chunk_record(rows, key, start, shown.models, shown.rules))
    return {"id": document.document_id, "num_tokens": len(document.token_ids), "chunks": chunks}


def _null_chunk(
    null: EvaluationDocument, chunk: tuple[str, int], start: int, chunk_length: int, rows: dict[str, Groups]
) -> np.ndarray | None:
    """The tokens of a chunk's null; None where those that were selected there are not among them.

    Results do not name the null's document: that of an earlier version may be another one.
    """
    null_start = chunk[1] % (len(null.token_ids) // chunk_length) * chunk_length
    null_ids = null.token_ids[null_start : null_start + chunk_length]
    for key, selected in rows["influential_tokens"].items():
        if key[:2] == chunk and key[-1] == OTHER_DOCUMENT:
            places = selected["target_position"] - selected["distance"] - start
            if not np.array_equal(null_ids[places], selected["context_token_id"]):
                return None
    return null_ids


def null_token_ids(record: Record) -> set[int]:
    """The tokens of other documents that a record names."""
    return {
        token_id
        for chunk in record["chunks"]
        for model in chunk["models"].values()
        for rule in model["rules"].values()
        for token_ids in rule.get(OTHER_DOCUMENT, {"token": []})["token"]
        for token_id in token_ids
    }
