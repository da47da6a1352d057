"""The explorer's page as one HTML file: a header and a record a document, all JSON values.

A browser needs half a second for 20 MB of numbers. So the page reads a record when its document is opened or
searched; the numbers that lists and figures need of all documents stand in the header.

The header says what all documents share:

{"results": "runs/demo/results",                  where this comes from, in words
 "models": ["long-seed0", …], "rules": [...], "k": [1, 2, 4, …],
 "short_context_length": 8, "long_context_length": 256, "targets_per_chunk": 16,
 "ablation": "mask", "recovery_fraction": 0.9, "minimum_gain": 0.1,
 "unit_nats": 0.001, "left_out": ["a sentence", …],
 "null_pieces": {"17": " cat", …}}                the text of the tokens that nulls name, by their ID

A record holds the measured chunks of one document. Losses and influences are whole numbers of `NATS`, which
is all that the page shows of them, at half the bytes of decimals. What is marked ? may be absent:

{"id": "00f3…", "num_tokens": 812, "chunks": [{"start": 0,
  "pieces": ["The", " cat", …],                   the text of each token of the chunk
  "null": {"id": "0a11…", "pieces": […]},         ? that of the null's chunk
  "targets": [240, …],                            places in the chunk
  "models": {"long-seed0": {
    "short": [4123, …], "long": […],              losses, a value a target
    "expected": […], "specific": […],             ? short-context divergence, document-specific gain
    "swap": […], "swap_kl": […],      ? of the ablation: loss, divergence with no k
    "rules": {"leave_one_out": {
      "k_star": {"loss": [4, null, "censored", …], "divergence": […]},    ? the latter
      "own": {
        "loss": [[4110, …], …], "kl": […],        a target: loss, ? divergence, at each studied k
        "distance": [[3, …], …], "influence": [[210, null, …], …],        a target: a value a rank
        "moved": […]},                            ? how far leaving it out moves the prediction
      "other_document": {…, "token": [[17, …], …]}}}}}}]}]}      ? the null, its tokens by ID
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli import InputError
from pipeline.results.schemas import DIVERGENCE, LOSS, OTHER_DOCUMENT, OWN

if TYPE_CHECKING:
    import pandas as pd

NATS = 1e-3
Record = dict[str, Any]
Groups = dict[tuple[Any, ...], "pd.DataFrame"]
_OF_TARGETS = {
    "short": "short_context_loss", "long": "long_context_loss", "expected": "short_context_divergence",
    "specific": "document_specific_gain",
}  # fmt: skip
_SWAPPED = {"swap": "swapped_loss", "swap_kl": "swapped_divergence"}
_CURVES = {"loss": "sparse_context_loss", "kl": "sparse_context_divergence"}
"""The page's names of columns; a column that is absent or holds nulls alone is left out."""
PAGE_COLUMNS = {
    "loss_differences": [*_OF_TARGETS.values()],
    "influential_tokens": ["rule", "distant_context", "rank", "distance", "context_token_id", "influence"],
    "sparse_context_losses": ["rule", "distant_context", "k", *_CURVES.values(), *_SWAPPED.values()],
    "dependency_sparsity": ["rule", "criterion", "k_90", "is_censored"],
}
"""What the page needs of the results, beside the target."""
_KEYS = ["document_id", "chunk_index", "model", "rule", "criterion", "distant_context"]
_BEGINNING = 60  # characters that lists.js shows of a document
_PARTS = Path(__file__).resolve().parent
_SCRIPTS = (
    "drawing.js", "values.js", "address.js", "lists.js", "text.js", "target.js", "taking.js", "page.js",
)  # fmt: skip


def grouped(tables: Mapping[str, "pd.DataFrame"]) -> dict[str, Groups]:
    """Artefact -> those of `_KEYS` that it has -> its rows in the order of targets, then of ranks or k."""
    groups = {}
    for artefact in PAGE_COLUMNS:
        rows = tables[artefact]
        keys, places = ([name for name in names if name in rows] for names in (_KEYS, ("rank", "k")))
        in_order = rows.sort_values([*keys, "target_position", *places])
        groups[artefact] = {tuple(key): group for key, group in in_order.groupby(keys, sort=False)}
    return groups


def chunk_record(
    rows: Mapping[str, Groups], chunk: tuple[str, int], start: int, models: Sequence[str],
    rules: Sequence[str],
) -> Record:  # fmt: skip
    """The targets of a chunk (document_id and chunk_index), and by model what was measured of them.

    `rows` are `grouped`; `start` is the place of the chunk's first token in the document.
    """
    of_models: dict[str, Record] = {}
    targets: list[int] | None = None
    for model in models:
        losses = rows["loss_differences"].get((*chunk, model))
        if losses is None:
            continue
        places = (losses["target_position"] - start).tolist()
        targets = targets or places
        if places != targets:
            raise InputError(f"model '{model}' was measured on other targets of document {chunk[0]}")
        present = [rule for rule in rules if (*chunk, model, rule, LOSS) in rows["dependency_sparsity"]]
        of_models[model] = _columns(losses, _OF_TARGETS)
        if present:  # no rule decides what S_k is added to under the ablation `swap`
            sparse = rows["sparse_context_losses"][*chunk, model, present[0], OWN]
            of_models[model] |= _columns(sparse.iloc[:: len(sparse) // len(targets)], _SWAPPED)
        of_models[model]["rules"] = {
            rule: _rule_record(rows, (*chunk, model, rule), len(targets)) for rule in present
        }
    return {"targets": targets, "models": of_models}


def _rule_record(rows: Mapping[str, Groups], key: tuple[Any, ...], num_targets: int) -> Record:
    """k* and, by distant context, losses and tokens of one rule; a null that was not measured is absent."""
    record: Record = {"k_star": {}}
    for criterion in (LOSS, DIVERGENCE):
        if (of_criterion := rows["dependency_sparsity"].get((*key, criterion))) is not None:
            k_stars = of_criterion["k_90"].to_numpy("float64", na_value=float("nan"))
            record["k_star"][criterion] = [
                "censored" if is_censored else None if k != k else int(k)
                for k, is_censored in zip(k_stars, of_criterion["is_censored"], strict=True)
            ]
    for distant_context in (OWN, OTHER_DOCUMENT):
        if (selected := rows["influential_tokens"].get((*key, distant_context))) is None:
            continue
        columns = {
            **_columns(rows["sparse_context_losses"][*key, distant_context], _CURVES),
            "distance": selected["distance"].tolist(), "influence": _in_units(selected["influence"]),
            **_columns(selected, {"moved": "divergence"}),
        }  # fmt: skip
        if distant_context == OTHER_DOCUMENT:
            columns["token"] = selected["context_token_id"].tolist()
        record[distant_context] = {}
        for name, values in columns.items():
            width = len(values) // num_targets
            starts = range(0, len(values), width)
            record[distant_context][name] = [values[start : start + width] for start in starts]
    return record


def _columns(rows: "pd.DataFrame", names: Mapping[str, str]) -> dict[str, list[Any]]:
    held = {name: rows[column] for name, column in names.items() if column in rows}
    return {name: _in_units(values) for name, values in held.items() if values.notna().any()}


def _in_units(nats: "pd.Series") -> list[int | None]:
    """Whole numbers of NATS."""
    values = nats.to_numpy(dtype="float64", na_value=float("nan")).tolist()
    return [None if value != value else round(value / NATS) for value in values]


def to_json(value: Any) -> str:
    """Compact JSON that may stand inside a script element: no `<`, so that nothing in it can end it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def numbers_of(record: Record) -> Record:
    """The part of a record that is read at once: its targets' own numbers, and the beginning of its text."""
    text = "\n".join("".join(chunk["pieces"]) for chunk in record["chunks"])
    chunks = []
    for chunk in record["chunks"]:
        models = {}
        for model, measured in chunk["models"].items():
            k_stars = {rule: {"k_star": of_rule["k_star"]} for rule, of_rule in measured["rules"].items()}
            models[model] = measured | {"rules": k_stars}
        chunks.append({"start": chunk["start"], "targets": chunk["targets"], "models": models})
    return record | {"beginning": text[:_BEGINNING], "chunks": chunks}


def page_of(header: dict[str, Any], documents: Sequence[tuple[Record, str]]) -> str:
    """The page's HTML, from its header and each document with its JSON.

    Only this very script and style may run: the page's content security policy names their hashes and allows
    nothing else, neither a script in a document's text nor any request.
    """
    script, style = "".join(map(_part, _SCRIPTS)), _part("style.css")
    at_once = to_json(header | {"documents": [numbers_of(record) for record, _ in documents]})
    elements = [('id="data"', at_once), *(('class="document"', encoded) for _, encoded in documents)]
    data = "\n".join(f'<script type="application/json" {which}>{text}</script>' for which, text in elements)
    return _filled("page.html", script, style, data)


def explained_page(record: Record) -> str:
    """The page of one text that was explained (`Explanation.record`), by the same policy."""
    data = f'<script type="application/json" id="data">{to_json(record)}</script>'
    return _filled("explained.html", _part("explained.js"), _part("explained.css"), data)


def _filled(page: str, script: str, style: str, data: str) -> str:
    html = _part(page)
    # The data comes last: texts may hold the very words that stand for the parts.
    contents = {
        "script-hash": _csp_hash(script), "style-hash": _csp_hash(style), "style": style, "script": script,
        "data": data,
    }  # fmt: skip
    for place, content in contents.items():
        html = html.replace(f"{{{{{place}}}}}", content)
    return html


def bytes_of_parts() -> int:
    """What the page takes without any data."""
    return sum((_PARTS / name).stat().st_size for name in (*_SCRIPTS, "style.css", "page.html"))


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")


def _csp_hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
