"""HTML pages of one file each, that open from disk without a network: `explained.html` and the explorer's."""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def html_page(page: str, scripts: Sequence[str], style: str, record: Any) -> str:
    """A page of this folder, filled with its scripts, its style and a record of JSON values.

    Only this very script and style may run: the page's content security policy names their hashes and allows
    nothing else, neither a script in a document's text nor any request.
    """
    folder = Path(__file__).resolve().parent
    parts = {
        "script": "".join((folder / name).read_text(encoding="utf-8") for name in scripts),
        "style": (folder / style).read_text(encoding="utf-8"),
    }
    html = (folder / page).read_text(encoding="utf-8")
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Without `<` nothing in a text can end the script element.
    data = text.replace("<", "\\u003c")
    for name, content in parts.items():
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        html = html.replace(f"{{{{{name}-hash}}}}", f"sha256-{digest}").replace(f"{{{{{name}}}}}", content)
    # Last: texts may hold the very words that stand for the parts.
    return html.replace("{{data}}", f'<script type="application/json" id="data">{data}</script>')
