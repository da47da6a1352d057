"""The explorer's page as one HTML file: a header and a record a document, all JSON values.

A browser needs half a second for 20 MB of numbers. So the page reads a record when its document is opened or
searched; the numbers that lists and figures need of all documents stand in the header.

The header says what all documents share:

{"results": "runs/demo/results",                  where this comes from, in words
 "models": ["long-seed0", …], "rules": [...], "k": [1, 2, 4, …],
 "short_context_length": 8, "long_context_length": 256, "targets_per_chunk": 16,
 "intervention": "remove", "recovery_fraction": 0.9, "minimum_gain": 0.1,
 "unit_nats": 0.001, "left_out": ["a sentence", …],
 "null_pieces": {"17": " cat", …}}                the text of the tokens that nulls name, by their ID

A record holds the measured chunks of one document. Losses and influences are whole numbers of `NATS`, which
is all that the page shows of them, at half the bytes of decimals:

{"id": "00f3…", "num_tokens": 812, "chunks": [{"start": 0,
  "pieces": ["The", " cat", …],                   the text of each token of the chunk
  "null": {"id": "0a11…", "pieces": […]},         that of the null's chunk; may be absent
  "targets": [240, …],                            places in the chunk
  "models": {"long-seed0": {
    "short": [4123, …], "long": […],              losses, a value a target
    "expected": […], "specific": […],             short-context divergence, specific gain; may be absent
    "background": […], "background_kl": […],      of intervention `background`: loss, divergence with no k
    "rules": {"leave_one_out": {
      "k_star": {"loss": [4, null, "censored", …], "divergence": […]},      the latter may be absent
      "own": {
        "loss": [[4110, …], …], "kl": […],        a target: loss, divergence (may be absent) at each studied k
        "distance": [[3, …], …], "influence": [[210, null, …], …],          a target: a value a rank
        "moved": […]},                            how far leaving it out moves the prediction; may be absent
      "other_document": {…, "token": [[17, …], …]}}}}}}]}]}        the null, its tokens by ID; may be absent
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli import InputError
from pipeline.results.schemas import LOSS, OTHER_DOCUMENT, OWN

if TYPE_CHECKING:
    import pandas as pd

NATS = 1e-3
Record = dict[str, Any]
Groups = dict[tuple[Any, ...], "pd.DataFrame"]
_OF_TARGETS = {
    "short": "short_context_loss", "long": "long_context_loss", "expected": "short_context_divergence",
    "specific": "specific_gain",
}  # fmt: skip
_BACKGROUND = {"background": "background_loss", "background_kl": "background_divergence"}
_CURVES = {"loss": "sparse_context_loss", "kl": "sparse_context_divergence"}
_LEFT_OUT = {"moved": "divergence"}
"""The page's names of columns; a column that is absent or holds nulls alone is left out."""
PAGE_COLUMNS = (
    list(_OF_TARGETS.values()),
    ["rule", "dependency_sparsity", "is_censored"],
    ["rule", "far_context", "k", *_CURVES.values(), *_BACKGROUND.values()],
    ["rule", "far_context", "rank", "distance", "context_token_id", "influence"],
)
"""What the page needs of the results of each field of `ResultRows`, beside the target."""
_BEGINNING = 60
"""Characters that lists.js shows of a document."""
_PARTS = Path(__file__).resolve().parent
_SCRIPTS = (
    "drawing.js", "values.js", "address.js", "lists.js", "text.js", "target.js", "taking.js", "page.js",
)  # fmt: skip


@dataclass(frozen=True)
class ResultRows:
    """Rows of results by what they are about, each group in the order of targets, then of ranks or k."""

    losses: Groups
    """(document_id, chunk_index, model) -> rows of loss_differences."""
    k_stars: Mapping[str, Groups]
    """Criterion -> (document_id, chunk_index, model, rule) -> rows of dependency_sparsity."""
    sparse: Groups
    """(document_id, chunk_index, model, rule, far_context) -> rows of sparse_context_losses."""
    selected: Groups
    """The same of influential_tokens."""


def grouped(rows: "pd.DataFrame", *names: str) -> Groups:
    """(document_id, chunk_index, model, *names) -> the rows, as `ResultRows` has them."""
    keys = ["document_id", "chunk_index", "model", *names]
    order = [*keys, "target_position", *(name for name in ("rank", "k") if name in rows)]
    return {tuple(key): group for key, group in rows.sort_values(order).groupby(keys, sort=False)}


def chunk_record(
    rows: ResultRows, chunk: tuple[str, int], start: int, models: Sequence[str], rules: Sequence[str]
) -> Record:
    """The targets of a chunk (document_id and chunk_index), and by model what was measured of them.

    `start` is the place of the chunk's first token in the document.
    """
    of_models: dict[str, Record] = {}
    targets: list[int] | None = None
    for model in models:
        losses = rows.losses.get((*chunk, model))
        if losses is None:
            continue
        places = (losses["target_position"] - start).tolist()
        targets = targets or places
        if places != targets:
            raise InputError(f"model '{model}' was measured on other targets of document {chunk[0]}")
        present = [rule for rule in rules if (*chunk, model, rule) in rows.k_stars[LOSS]]
        of_rules = {rule: _rule_record(rows, (*chunk, model, rule), len(targets)) for rule in present}
        of_models[model] = _columns(losses, _OF_TARGETS)
        if present:  # no rule decides what S_k is added to under the intervention `background`
            sparse = rows.sparse[*chunk, model, present[0], OWN]
            of_models[model] |= _columns(sparse.iloc[:: len(sparse) // len(targets)], _BACKGROUND)
        of_models[model]["rules"] = of_rules
    return {"targets": targets, "models": of_models}


def _rule_record(rows: ResultRows, key: tuple[Any, ...], num_targets: int) -> Record:
    """k* and, by far context, the losses and tokens of one rule; a null that was not measured is absent."""
    record: Record = {"k_star": {}}
    for criterion, groups in rows.k_stars.items():
        if key in groups:
            k_stars = groups[key]["dependency_sparsity"].to_numpy("float64", na_value=float("nan"))
            record["k_star"][criterion] = [
                "censored" if is_censored else None if k != k else int(k)
                for k, is_censored in zip(k_stars, groups[key]["is_censored"], strict=True)
            ]
    for far_context in (OWN, OTHER_DOCUMENT):
        if (*key, far_context) not in rows.sparse:
            continue
        sparse, selected = rows.sparse[*key, far_context], rows.selected[*key, far_context]
        columns = {
            **_columns(sparse, _CURVES), "distance": selected["distance"].tolist(),
            "influence": _in_units(selected["influence"]), **_columns(selected, _LEFT_OUT),
        }  # fmt: skip
        if far_context == OTHER_DOCUMENT:
            columns["token"] = selected["context_token_id"].tolist()
        record[far_context] = {}
        for name, values in columns.items():
            width = len(values) // num_targets
            starts = range(0, len(values), width)
            record[far_context][name] = [values[start : start + width] for start in starts]
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
    whole = {"id": record["id"], "num_tokens": record["num_tokens"]}
    return whole | {"beginning": text[:_BEGINNING], "chunks": chunks}


def page_of(header: dict[str, Any], documents: Sequence[tuple[Record, str]]) -> str:
    """The page's HTML, from its header and each document with its JSON.

    Only this very script and style may run: the page's content security policy names their hashes and allows
    nothing else, neither a script in a document's text nor any request.
    """
    script, style = "".join(map(_part, _SCRIPTS)), _part("style.css")
    at_once = to_json(header | {"documents": [numbers_of(record) for record, _ in documents]})
    data = f'<script type="application/json" id="data">{at_once}</script>\n' + "\n".join(
        f'<script type="application/json" class="document">{encoded}</script>' for _, encoded in documents
    )
    html = _part("page.html")
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
