"""What the explorer shows of a results folder: records, as `pipeline/explorer_page/writing.py` has them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.read import TARGET, read_sparse_losses, read_sparsity, shown_rule
from pipeline.cli import InputError, unknown_name
from pipeline.explorer_page.writing import PAGE_COLUMNS, Groups, Record, chunk_record, grouped
from pipeline.results.read import artefacts_in, missing_artefact, read_artefact, read_settings
from pipeline.results.schemas import DIVERGENCE, LOSS, OTHER_DOCUMENT
from pipeline.text.folder import EvaluationDocument, TokenizedData
from pipeline.text.tokenizer import DocumentTokenizer

_DOCUMENTS_A_READ = 50
_GEOMETRY = ("short_context_length", "long_context_length", "targets_per_chunk")
_SETTINGS = {
    "loss_differences": _GEOMETRY,
    "influential_tokens": (*_GEOMETRY, "k", "ablation", "recovery_fraction", "minimum_gain"),
}
"""Stage -> what must be the same for all that stands side by side on the page."""


class Shown(NamedTuple):
    """The part of a results folder that is shown."""

    results: Path
    models: list[str]
    """Those with selections first; the others have losses only."""
    rules: list[str]
    """The recommended one first: the page opens with it."""
    document_ids: list[str]
    """In the order of their hashes: the first few are a random sample."""
    settings: Mapping[str, Any]
    """That all models share."""


def choose(results: Path, models: Sequence[str] | None, rules: Sequence[str] | None) -> Shown:
    """What of a results folder can be shown: all models and rules unless some are named.

    InputError if an artefact, model or rule is missing, models were measured with other settings than others,
    or nothing is left to show.
    """
    for artefact in PAGE_COLUMNS:
        if artefact not in artefacts_in(results):
            raise missing_artefact(results, artefact)
    sparsity = read_sparsity(results, columns=["document_id", "rule"])
    losses = read_artefact(results, "loss_differences", ["document_id"])
    choosing = sorted(set(sparsity["model"]))
    models = _named("model", models, [*choosing, *sorted(set(losses["model"]) - set(choosing))])
    sparsity = sparsity[sparsity["model"].isin(models)]
    present_rules = list(dict.fromkeys(sparsity["rule"]))
    recommended_first = sorted(present_rules, key=lambda rule: rule != shown_rule(present_rules))
    rules = _named("rule", rules, recommended_first)
    sparsity = sparsity[sparsity["rule"].isin(rules)][["model", "document_id"]].drop_duplicates()
    both = sparsity.merge(losses.drop_duplicates())
    if both.empty:
        raise InputError(
            f"{results} has no document with both loss differences and influential tokens of"
            f" {', '.join(models)}; run both stages on the same documents"
        )
    shared: dict[str, Any] = {}
    for stage, names in _SETTINGS.items():
        for model, of_model in read_settings(results, stage).items():
            for name in names if model in models else ():
                if shared.setdefault(name, of_model.get(name)) != of_model.get(name):
                    raise InputError(
                        f"{results} mixes configurations: {name} is {shared[name]} and, for {stage} of"
                        f" '{model}', {of_model.get(name)}; show like ones, with --models"
                    )
    return Shown(results, models, rules, sorted(set(both["document_id"])), shared)


def _named(kind: str, wanted: Sequence[str] | None, present: Sequence[str]) -> list[str]:
    for name in wanted or ():
        if name not in present:
            raise unknown_name(kind, name, present)
    return [name for name in present if wanted is None or name in wanted]


def records(
    shown: Shown, document_ids: Sequence[str], data: TokenizedData, tokenizer: DocumentTokenizer
) -> Iterator[Record]:
    """A record a document of `document_ids`; few documents are read at a time."""
    documents = {document.document_id: document for document in data.evaluation_documents()}
    for start in range(0, len(document_ids), _DOCUMENTS_A_READ):
        batch = list(document_ids[start : start + _DOCUMENTS_A_READ])
        rows = _rows_of(shown, batch)
        for document_id in batch:
            yield _record(shown, documents[document_id], rows, tokenizer)


def _rows_of(shown: Shown, document_ids: list[str]) -> dict[str, Groups]:
    results = shown.results
    only = {"model": shown.models, "document_id": document_ids}
    of_rules = only | {"rule": shown.rules}
    columns = {artefact: [*TARGET, *names] for artefact, names in PAGE_COLUMNS.items()}
    k_stars = [
        read_sparsity(results, criterion, columns["dependency_sparsity"], of_rules)
        for criterion in (LOSS, DIVERGENCE)
    ]
    tables = {
        artefact: read_artefact(results, artefact, columns[artefact], of_artefact)
        for artefact, of_artefact in (("loss_differences", only), ("influential_tokens", of_rules))
    }
    tables["dependency_sparsity"] = pd.concat(k_stars)
    sparse = columns["sparse_context_losses"]
    tables["sparse_context_losses"] = read_sparse_losses(results, sparse, of_rules)
    return grouped(tables)


def _record(
    shown: Shown, document: EvaluationDocument, rows: dict[str, Groups], tokenizer: DocumentTokenizer
) -> Record:
    chunk_length = shown.settings["long_context_length"]
    indices = sorted({key[1] for key in rows["loss_differences"] if key[0] == document.document_id})
    # From the document's start, as a chunk may begin inside of a character.
    pieces = tokenizer.pieces(document.token_ids[: (indices[-1] + 1) * chunk_length].tolist())
    chunks = []
    for index in indices:
        start = index * chunk_length
        chunk: Record = {"start": start, "pieces": pieces[start : start + chunk_length]}
        measured = chunk_record(rows, (document.document_id, index), start, shown.models, shown.rules)
        chunks.append(chunk | measured)
    return {"id": document.document_id, "num_tokens": len(document.token_ids), "chunks": chunks}


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
