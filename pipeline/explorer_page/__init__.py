"""HTML pages of one file each, that open from disk without a network: `explained.html` and the explorer's."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def html_page(page: str, scripts: Sequence[str], style: str, record: Any) -> str:
    """A page of this folder, filled with its scripts, its style and a record of JSON values.

    The page's content security policy forbids every request.
    """
    folder = Path(__file__).resolve().parent
    script = "".join((folder / name).read_text(encoding="utf-8") for name in scripts)
    html = (folder / page).read_text(encoding="utf-8").replace("{{script}}", script)
    html = html.replace("{{style}}", (folder / style).read_text(encoding="utf-8"))
    data = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Last: texts may hold the very words that stand for the parts. Without `<` none can end the element.
    return html.replace("{{data}}", data.replace("<", "\\u003c"))
