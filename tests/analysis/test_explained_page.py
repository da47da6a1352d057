"""The page that `explain` writes, in a real headless Chromium: hostile text, what is chosen, and no null."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from explorer_browser import NO_CHROMIUM, browser, opened, sync_api
from hugging_face_families import make_model

from pipeline import explain as program
from pipeline.cli import run_stage
from pipeline.explain import explain
from pipeline.text.tokenizer import train_bpe

__all__ = ["browser"]  # a fixture
pytestmark = NO_CHROMIUM

BAIT = "window.executed = true"
TEXT = (
    f'{{{{data}}}} </script><script>{BAIT}</script><img src="x" onerror="{BAIT}"> 👩‍👩‍👧 e\u0301 \x1b[31m'
    " مرحبا بالعالم \u202eturned\u202c and an end that is plain"
)
NAME = "<b>letter</b>.txt"
KS = ["1", "3"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a text and its page."""
    folder = tmp_path_factory.mktemp("explained")
    tokenizer = train_bpe([TEXT * 3], 330)
    model = make_model("gpt_neox", vocab_size=tokenizer.vocabulary_size, max_position_embeddings=128)
    model.save_pretrained(folder / "model")
    (folder / "model/tokenizer.json").write_text(tokenizer.to_json())
    (folder / NAME.replace("/", "")).write_text(TEXT)
    words = [
        "explain.py", "--model", str(folder / "model"), "--text-file", str(folder / NAME.replace("/", "")),
        "--short-context-length", "6", "--k", *KS, "--out", str(folder / "page.html"),
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        run_stage(program.parser(), program.main)
    return folder


@pytest.fixture
def page(browser: "sync_api.BrowserContext", written: Path) -> Iterator["sync_api.Page"]:
    yield from opened(browser, written / "page.html")


def test_the_text_is_shown_as_text(page: "sync_api.Page") -> None:
    assert TEXT.endswith(page.locator("#text .chunk").text_content())
    assert page.locator("#text-heading").inner_text() == f"Document {NAME.replace('/', '')}"
    assert page.locator("#text .chunk").evaluate(
        "chunk => [...chunk.querySelectorAll('*')].every(e => e.matches('span.token'))"
    )
    assert page.locator("script").count() == 3


def test_the_page_shows_what_the_frame_says(page: "sync_api.Page", written: Path) -> None:
    frame = explain(TEXT, str(written / "model"), short_context_length=6, ks=[1, 3])
    assert page.locator("#text .target").count() == len(frame)
    page.get_by_role("slider").press("End")
    for row in frame.iloc[::9].itertuples():
        place = list(frame["position"]).index(row.position)
        # A blank at the end of a line has no place that a mouse could click at.
        page.locator("#text .target").nth(place).dispatch_event("click")
        cells = page.locator("#tokens tbody tr").evaluate_all(
            "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
        )
        assert [int(distance) for _, _, distance, *_ in cells] == [
            row.position - source for source in row.source_positions
        ]
        moved = [float(shown) for *_, shown, _ in cells]
        assert moved == pytest.approx(row.source_divergences, abs=6e-4)
        numbers = page.locator("#numbers").inner_text()
        assert (
            f"{row.short_context_loss:.3f}"[:-1] in numbers and f"{row.long_context_loss:.3f}"[:-1] in numbers
        )
    assert pd.notna(frame["specific_gain"]).all()


def test_a_rule_without_a_null_offers_none(page: "sync_api.Page") -> None:
    assert page.get_by_role("radio", name="null: another document's").is_disabled()
    assert "measured without its null" in page.locator("#note").inner_text()
    page.keyboard.press("n")
    assert page.get_by_role("radio", name="own").is_checked()
    assert not page.get_by_role("combobox", name="Beside it").is_visible()
