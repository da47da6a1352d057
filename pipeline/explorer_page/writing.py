"""The explorer's page as one HTML file, from a header and a record a document, all JSON values.

A browser reads 20 MB of numbers in half a second and more. So each record stands apart, and the page reads it
when its document is opened, or searched; what lists and figures ask of all documents stands in the header.

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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

NATS = 1e-3
Record = dict[str, Any]
_BEGINNING = 60
"""Characters that lists.js shows of a document."""
_PARTS = Path(__file__).resolve().parent
_SCRIPTS = (
    "drawing.js", "values.js", "address.js", "lists.js", "text.js", "target.js", "taking.js", "page.js",
)  # fmt: skip
_STYLE, _HTML = "style.css", "page.html"


def in_units(nats: Iterable[float | None]) -> list[int | None]:
    """Whole numbers of NATS; None where there is no number, or NaN."""
    return [None if value is None or value != value else round(value / NATS) for value in nats]


def to_json(value: Any) -> str:
    """Compact JSON that may stand inside a script element: no `<`, so that nothing in it can end it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def numbers_of(record: Record) -> Record:
    """The part of a record that is read at once: its targets' own numbers, and the beginning of its text."""
    text = "\n".join("".join(chunk["pieces"]) for chunk in record["chunks"])
    chunks = [
        {
            "start": chunk["start"],
            "targets": chunk["targets"],
            "models": {model: _without_choices(measured) for model, measured in chunk["models"].items()},
        }
        for chunk in record["chunks"]
    ]
    return {
        "id": record["id"], "num_tokens": record["num_tokens"], "beginning": text[:_BEGINNING],
        "chunks": chunks,
    }  # fmt: skip


def _without_choices(measured: Record) -> Record:
    k_stars = {rule: {"k_star": of_rule["k_star"]} for rule, of_rule in measured["rules"].items()}
    return measured | {"rules": k_stars}


def page_of(header: dict[str, Any], documents: Sequence[tuple[Record, str]]) -> str:
    """The page's HTML, from its header and each document with its JSON.

    Only this very script and style may run: the page's content security policy names their hashes and allows
    nothing else, neither a script in a document's text nor any request.
    """
    script = "".join(_part(name) for name in _SCRIPTS)
    style = _part(_STYLE)
    at_once = to_json(header | {"documents": [numbers_of(record) for record, _ in documents]})
    data = f'<script type="application/json" id="data">{at_once}</script>\n' + "\n".join(
        f'<script type="application/json" class="document">{encoded}</script>' for _, encoded in documents
    )
    html = _part(_HTML)
    # The data comes last: texts may hold the very words that stand for the parts.
    for place, content in (
        ("{{script-hash}}", _csp_hash(script)), ("{{style-hash}}", _csp_hash(style)),
        ("{{style}}", style), ("{{script}}", script), ("{{data}}", data),
    ):  # fmt: skip
        assert html.count(place) == 1, place
        html = html.replace(place, content)
    return html


def bytes_of_parts() -> int:
    """What the page takes without any data."""
    return sum((_PARTS / name).stat().st_size for name in (*_SCRIPTS, _STYLE, _HTML))


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")


def _csp_hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
