"""Write results as one HTML page: every target in its text, with the tokens it needs.

  sparsity explorer runs/demo/results --out runs/demo/explorer.html

The page is a single file that any browser opens from disk, without a network. Targets are shaded by the gain,
L_short - L_long. Click one, or use the arrow keys: its k influential tokens light up, and beside the text you
see their influence and distance, and how the loss falls from the short to the long context. You can switch
model, selection rule, distant context (the text's own, or the null baseline) and k, search documents, and
sort them by gain.

The results must include loss_differences and influential_tokens; the text comes from the tokenized data that
they were measured on. The page says what it leaves out. A browser reads 20 MB in half a second; if the page
is much larger, reduce --max-documents, --models or --rules.

The page holds one record:

{"results": "runs/demo/results",                  the results folder
 "models": ["long-seed0", …], "rules": [...], "k": [1, 2, 4, …],
 "short_context_length": 8, "long_context_length": 128, "targets_per_chunk": 16, "target_stride": 1,
 "ablation": "swap", "search_swaps": 0, "recovery_fraction": 0.9, "minimum_gain": 0.1,
 "unit_nats": 0.001, "left_out": ["a sentence", …], "documents": […]}

and each document has its measured chunks. Losses and influences are integers in units of unit_nats, the
precision that the page shows, at half the bytes of decimals. Entries marked ? may be absent:

{"id": "00f3…", "num_tokens": 812, "chunks": [{"start": 0,
  "pieces": ["The", " cat", …],                   the text of each token of the chunk
  "targets": [112, …],                            places in the chunk
  "models": {"long-seed0": {
    "short": [4123, …], "long": […],              losses, one value per target
    "expected": […], "specific": […],             ? short-context divergence, document-specific gain
    "swap": […], "swap_kl": […],                  ? swapped context: loss, divergence with k = 0
    "rules": {"leave_one_out": {
      "k_star": {"loss": [4, null, "censored", …], "divergence": […]},    ? the latter
      "own": {
        "loss": [[4110, …], …], "kl": […],        per target: loss, ? divergence, at each studied k
        "distance": [[3, …], …], "influence": [[210, null, …], …]},       per target: one value per rank
      "other_document": {…, "token": [[" cat", …], …]}}}}}}]}     ? the null, with its tokens
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sparsity_length.cli import (
    InputError,
    Stage,
    file_path,
    folder_path,
    positive_int,
    progress,
    unknown_name,
)
from sparsity_length.figures.read import TARGET, data_of, read_sparse_losses, read_sparsity, shown_rule
from sparsity_length.measuring.settings import RECOVERY_FRACTION
from sparsity_length.pages import html_page
from sparsity_length.results.files import refuse_replacing, write_text
from sparsity_length.results.read import Results
from sparsity_length.results.schemas import DIVERGENCE, LOSS, OTHER_DOCUMENT, OWN
from sparsity_length.text.folder import EvaluationDocument
from sparsity_length.text.tokenizer import DocumentTokenizer

NATS = 1e-3
Groups = Mapping[str, dict[Any, pd.DataFrame]]
"""Table -> document, chunk, model and so on -> its rows."""
_OF_TARGETS = {
    "short": "short_context_loss",
    "long": "long_context_loss",
    "expected": "short_context_divergence",
    "specific": "document_specific_gain",
}
_SWAPPED = {"swap": "swapped_loss", "swap_kl": "swapped_divergence"}
_CURVES = {"loss": "sparse_context_loss", "kl": "sparse_context_divergence"}
"""The page's names of columns; a column that is absent or holds nulls alone is left out."""
_LENGTHS = ("short_context_length", "long_context_length", "targets_per_chunk", "target_stride")
_SETTINGS = (*_LENGTHS, "k", "ablation", "search_swaps", "minimum_gain")
"""Settings that all models on the page must share; losses have lengths only."""
_KEYS = ["document_id", "chunk_index", "model", "rule", "criterion", "distant_context"]
_SCRIPTS = (
    "drawing.js",
    "values.js",
    "address.js",
    "lists.js",
    "text.js",
    "target.js",
    "taking.js",
    "page.js",
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    add = parser.add_argument
    add("results", type=folder_path, metavar="RESULTS", help="results folder to read")
    add("--out", type=file_path, required=True, help="page to write; an existing file is overwritten")
    add(
        "--data",
        type=folder_path,
        help="folder of tokenize_c4 that was measured (default: the folder data beside RESULTS)",
    )
    add(
        "--max-documents",
        type=positive_int,
        default=200,
        help="number of documents to show, the first by hash",
    )
    add("--models", nargs="+", metavar="MODEL", help="models to show (default: all)")
    add("--rules", nargs="+", metavar="RULE", help="selection rules to show (default: all)")


def main(arguments: argparse.Namespace) -> None:
    """Write the page."""
    results = arguments.results
    refuse_replacing([arguments.out], [results, arguments.data])
    shown, document_ids = choose(results, arguments.models, arguments.rules)
    data = data_of(results, arguments.data, "loss_differences", "influential_tokens")
    tokenizer = data.tokenizer()
    documents = {document.document_id: document for document in data.evaluation_documents()}
    wanted = document_ids[: arguments.max_documents]
    rows = _rows_of(shown, results, wanted)
    records = [
        _record(shown, documents[document_id], rows, tokenizer)
        for document_id in progress(wanted, "explorer", "document")
    ]
    num_available = len(document_ids)
    left_out = [
        "The text outside of the measured chunks.",
        "The influence of distant tokens that no rule selected (artefact influences).",
        "The text of the null's other documents, but for the tokens selected there.",
    ]
    if num_left_out := num_available - len(records):
        left_out.insert(
            0,
            f"{num_left_out:,} of {num_available:,} documents with both losses and influential tokens: shown"
            " are the first in the order of their hashes, a random sample (--max-documents).",
        )
    header = {"results": str(results), **shown, "unit_nats": NATS, "left_out": left_out, "documents": records}
    text = html_page("page.html", _SCRIPTS, "style.css", header)
    write_text(arguments.out, text)


def choose(
    results: Path, models: Sequence[str] | None, rules: Sequence[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """Choose what of a results folder is shown: all models and rules unless some are named.

    InputError if a model or rule is missing, models were measured with other settings than others, or nothing
    is left to show.

    Returns:
        Models, those with selections first; rules, the recommended one first, which the page opens with; and
        the settings that the models share. Documents in the order of their hashes: the first are a random
        sample.
    """
    sparsity = read_sparsity(results, columns=["document_id", "rule"])
    losses = Results(results).frame("loss_differences", ["document_id"])
    models = _named(
        "model", models, [*dict.fromkeys([*sorted(set(sparsity["model"])), *sorted(set(losses["model"]))])]
    )
    sparsity = sparsity[sparsity["model"].isin(models)]
    present_rules = list(dict.fromkeys(sparsity["rule"]))
    recommended_first = sorted(present_rules, key=lambda rule: rule != shown_rule(present_rules))
    rules = _named("rule", rules, recommended_first)
    sparsity = sparsity[sparsity["rule"].isin(rules)]
    # Joined on both columns, as the two tables share no other.
    both = sparsity[["model", "document_id"]].drop_duplicates().merge(losses.drop_duplicates())["document_id"]
    if both.empty:
        raise InputError(
            f"{results} has no document with both loss differences and influential tokens of"
            f" {', '.join(models)}; run both stages on the same documents"
        )
    # Models that have only losses made no selection, so they have no settings of one.
    selecting, differences = (
        [way for model, way in Results(results).settings(stage).items() if model in models]
        for stage in ("influential_tokens", "loss_differences")
    )
    shared = {name: selecting[0].get(name) for name in _SETTINGS}
    pairs = [*product(_SETTINGS, selecting), *product(_LENGTHS, differences)]
    if differing := sorted({name for name, way in pairs if way.get(name) != shared[name]}):
        raise InputError(
            f"the models or stages of {results} differ in {', '.join(differing)}; choose --models that do"
            " not, or measure both stages alike"
        )
    shared["recovery_fraction"] = RECOVERY_FRACTION
    return {"models": models, "rules": rules, **shared}, sorted(set(both))


def _named(kind: str, wanted: Sequence[str] | None, present: Sequence[str]) -> list[str]:
    for name in wanted or ():
        if name not in present:
            raise unknown_name(kind, name, present)
    return [name for name in present if wanted is None or name in wanted]


def _rows_of(shown: Mapping[str, Any], results: Path, document_ids: list[str]) -> Groups:
    """Artefact -> those of `_KEYS` that it has -> its rows in the order of targets, then of ranks or k."""
    losses_only = {"model": shown["models"], "document_id": document_ids}
    only = losses_only | {"rule": shown["rules"]}
    of_rule = [*TARGET, "rule", "distant_context"]
    k_stars = [*TARGET, "rule", "criterion", "k_90", "is_censored"]
    selected = [*of_rule, "rank", "distance", "context_token_id", "influence"]
    sparse = [*of_rule, "k", *_CURVES.values(), *_SWAPPED.values()]
    tables = {
        "losses": Results(results).frame("loss_differences", [*TARGET, *_OF_TARGETS.values()], losses_only),
        "selected": Results(results).frame("influential_tokens", selected, only),
        "sparse": read_sparse_losses(results, sparse, only),
        "k_stars": pd.concat(
            read_sparsity(results, criterion, k_stars, only) for criterion in (LOSS, DIVERGENCE)
        ),
    }
    groups = {}
    for name, rows in tables.items():
        keys = [key for key in _KEYS if key in rows]
        places = [place for place in ("target_position", "rank", "k") if place in rows]
        # Grouped once: filtering the whole table for every chunk, model and rule would take far longer.
        groups[name] = dict(iter(rows.sort_values([*keys, *places]).groupby(keys, sort=False)))
    return groups


def _record(
    shown: Mapping[str, Any], document: EvaluationDocument, rows: Groups, tokenizer: DocumentTokenizer
) -> dict[str, Any]:
    length = shown["long_context_length"]
    indices = sorted({key[1] for key in rows["losses"] if key[0] == document.document_id})
    # From the document's start, as a chunk may begin inside of a character.
    pieces = tokenizer.pieces(document.token_ids[: (indices[-1] + 1) * length].tolist())
    chunks = []
    for index in indices:
        start = index * length
        chunk: dict[str, Any] = {"start": start, "pieces": pieces[start : start + length], "models": {}}
        for model in shown["models"]:
            key = (document.document_id, index, model)
            if key not in rows["losses"]:
                continue
            losses = rows["losses"][key]
            targets = (losses["target_position"] - start).tolist()
            # The page has one list of targets per chunk, which the first model sets.
            if chunk.setdefault("targets", targets) != targets:
                raise InputError(
                    f"model '{model}' was measured on other targets of document {document.document_id}"
                )
            measured: dict[str, Any] = _columns(losses, _OF_TARGETS) | {"rules": {}}
            for rule in shown["rules"]:
                if (*key, rule, LOSS) in rows["k_stars"]:
                    # No rule decides what S_k is added to under the ablation `swap`.
                    sparse = rows["sparse"][*key, rule, OWN]
                    # Sorted by target, then k: with three k every third row begins a new target.
                    measured |= _columns(sparse.iloc[:: len(sparse) // len(targets)], _SWAPPED)
                    measured["rules"][rule] = _rule_record(rows, (*key, rule), len(targets), tokenizer)
            chunk["models"][model] = measured
        chunks.append(chunk)
    return {"id": document.document_id, "num_tokens": len(document.token_ids), "chunks": chunks}


def _rule_record(
    rows: Groups, key: tuple[Any, ...], num_targets: int, tokenizer: DocumentTokenizer
) -> dict[str, Any]:
    """k* and, by distant context, losses and tokens of one rule; a null that was not measured is absent."""
    record: dict[str, Any] = {"k_star": {}}
    for criterion in (LOSS, DIVERGENCE):
        if (*key, criterion) in rows["k_stars"]:
            of_criterion = rows["k_stars"][*key, criterion]
            # As objects, since None and "censored" stand among the integers, and JSON has no NaN.
            k_stars = of_criterion["k_90"].astype(object).where(of_criterion["k_90"].notna(), None)
            record["k_star"][criterion] = k_stars.mask(of_criterion["is_censored"], "censored").tolist()
    for distant_context in (OWN, OTHER_DOCUMENT):
        if (*key, distant_context) not in rows["selected"]:
            continue
        selected = rows["selected"][*key, distant_context]
        columns = {
            **_columns(rows["sparse"][*key, distant_context], _CURVES),
            "distance": selected["distance"].tolist(),
            "influence": _in_units(selected["influence"]),
        }
        if distant_context == OTHER_DOCUMENT:
            # Decoded one by one: these tokens don't follow each other in the other document.
            columns["token"] = [tokenizer.pieces([token_id])[0] for token_id in selected["context_token_id"]]
        record[distant_context] = {
            # Rows are sorted by target first, and each target has as many ranks or k.
            name: np.reshape(np.array(values, dtype=object), (num_targets, -1)).tolist()
            for name, values in columns.items()
        }
    return record


def _columns(rows: pd.DataFrame, names: Mapping[str, str]) -> dict[str, list[Any]]:
    held = {name: rows[column] for name, column in names.items() if column in rows}
    return {name: _in_units(values) for name, values in held.items() if values.notna().any()}


def _in_units(nats: pd.Series) -> list[int | None]:
    """Whole numbers of NATS."""
    return [None if pd.isna(value) else round(value / NATS) for value in nats]


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
