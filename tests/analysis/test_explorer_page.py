"""The explorer's page in a real headless Chromium: what is chosen, and hostile text.

Skipped where there is no Chromium (Debian: `apt-get install chromium`).
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from explorable_results import MODELS, write_explorable
from in_chromium import HOSTILE, chromium, needs_chromium, opened, sync_api
from sparsity_length.analysis import explorer

from sparsity_length.results.read import Results
from sparsity_length.text.folder import TokenizedData
from sparsity_length.text.tokenizer import load_tokenizer

pytestmark = [pytest.mark.slow, needs_chromium]
TEXTS = ["plain words of a shop in the street ", "=naïve “quotes” — 你好, and so on ", *HOSTILE]
LENGTHS = (4, 64, 5)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["sync_api.BrowserContext"]:
    with chromium(tmp_path_factory.mktemp("profile")) as context:
        yield context


@pytest.fixture(scope="module")
def explorable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the ablation `swap`, and their page."""
    folder = tmp_path_factory.mktemp("explorable")
    write_explorable(folder, [text * 40 for text in TEXTS], lengths=LENGTHS, ablation="swap")
    explorer.STAGE([str(folder / "results"), "--out", str(folder / "page.html")])
    return folder


@pytest.fixture
def page(browser: "sync_api.BrowserContext", explorable: Path) -> Iterator["sync_api.Page"]:
    with opened(browser, explorable / "page.html") as page:
        yield page


def read(explorable: Path, artefact: str, **where: object) -> pd.DataFrame:
    rows = Results(explorable / "results").frame(artefact)
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return rows


def open_document(page: "sync_api.Page", start: str) -> str:
    """Open the document of this beginning; its ID."""
    page.get_by_role("searchbox", name="Search").fill(start)
    page.locator("#documents button").first.click()
    return page.locator("#documents button").first.get_attribute("data-id")


def cells(page: "sync_api.Page") -> list[list[str]]:
    """The texts of the table of tokens, row by row."""
    return page.locator("#tokens tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )


def lit_tokens(page: "sync_api.Page") -> dict[int, str]:
    """Rank -> text of the tokens that light up in the text."""
    pairs = page.locator("#text .lit").evaluate_all(
        "found => found.map(token => [token.dataset.rank, token.textContent])"
    )
    return {int(rank): text for rank, text in pairs}


def shown_position(page: "sync_api.Page") -> int:
    return int(page.locator("#target-heading").inner_text().rpartition("position ")[2])


@pytest.mark.parametrize(
    ("rule", "distant_context"), [("leave_one_out", "own"), ("recency", "other_document")]
)
def test_a_click_shows_the_tokens_that_the_parquet_says(
    page: "sync_api.Page", explorable: Path, rule: str, distant_context: str
) -> None:
    document_id = open_document(page, "plain words")
    page.get_by_role("combobox", name="Rule").select_option(rule)
    page.get_by_role("radio", name="own" if distant_context == "own" else "null: another document's").check()
    page.get_by_role("slider").press("End")
    data = TokenizedData.open(explorable / "data")
    tokenizer = load_tokenizer(data.folder / "tokenizer.json")
    (document,) = (one for one in data.evaluation_documents() if one.document_id == document_id)
    pieces = tokenizer.pieces(document.token_ids.tolist())
    for target in page.locator("#text .target").all()[::2]:
        target.click()
        where = {"model": MODELS[0], "document_id": document_id, "target_position": shown_position(page)}
        rows = read(explorable, "influential_tokens", **where, rule=rule, distant_context=distant_context)
        rows = rows.sort_values("rank")
        assert [[rank, distance, influence] for rank, _, distance, influence, _ in cells(page)] == [
            [str(row.rank), str(row.distance), f"{row.influence:+.3f}".replace("-", "−")]
            for row in rows.itertuples()
        ]
        is_ranked = rows["influence"].is_monotonic_decreasing
        assert ("does not rank by the last column" in page.locator("caption").inner_text()) != is_ranked
        assert lit_tokens(page) == {
            int(rank): pieces[place].strip(" ") or pieces[place]
            for rank, place in zip(rows["rank"], rows["context_position"], strict=True)
        }


def test_hostile_text_is_shown_as_text(page: "sync_api.Page") -> None:
    for text in HOSTILE:
        open_document(page, text[:9].lower())
        shown = "".join(page.locator("#text .chunk").all_text_contents())
        assert shown.startswith(text)
        # the elements are ours alone: nothing in the text became one
        assert page.locator("#text .chunk").first.evaluate(
            "chunk => [...chunk.querySelectorAll('*')].every(e => e.matches('span.token'))"
        )
        for target in page.locator("#text .target").all()[::3]:
            target.dispatch_event("click")  # some take no room that a mouse could click at
    assert page.locator("script").count() == 2  # data, code
    assert page.locator("img, svg:not(#chart, #histogram), a").count() == 0
