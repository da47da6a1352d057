"""The explorer's page in a real headless Chromium: what a click, a key and the slider show, and hostile text.

Skipped where there is no Chromium (Debian: `apt-get install chromium`).
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from explorable_results import KS, MODELS, RULES, SHORT, TARGETS, write_explorable
from explorer_browser import NO_CHROMIUM, browser, opened, sync_api

from analysis import explorer
from pipeline.results.read import read_artefact
from pipeline.text.folder import TokenizedData
from pipeline.text.tokenizer import load_tokenizer

__all__ = ["browser"]  # a fixture
pytestmark = NO_CHROMIUM
LONG = 256
BAIT = "window.executed = true"
HOSTILE = [
    f"<script>{BAIT}</script></script><script>{BAIT}</script><!-- {{{{data}}}} ",
    f'<img src="x" onerror="{BAIT}"><svg onload="{BAIT}"><a href="javascript:{BAIT}">x</a>&lt;b&gt;&amp; ',
    "مرحبا بالعالم وهذا نص من اليمين إلى اليسار \u202eoverridden\u202c \u2066isolated\u2069 ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 ﷽ \u0000\u0007\u2028 \ufffd\ufffd 𝔘𝔫𝔦 ",
]
TEXTS = ["plain words of a shop in the street ", "naïve “quotes” — 你好, and so on ", *HOSTILE]
LONG_TEXT = "one hundred thousand characters <b>bold</b> " * 2_300


@pytest.fixture(scope="module")
def explorable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorable")
    results, _ = write_explorable(
        folder, [text * 60 for text in TEXTS] + [LONG_TEXT], MODELS, RULES, (SHORT, LONG, TARGETS)
    )
    explorer.main(explorer.parser().parse_args([str(results), "--out", str(folder / "page.html")]))
    return folder


@pytest.fixture
def page(browser: "sync_api.BrowserContext", explorable: Path) -> Iterator["sync_api.Page"]:
    yield from opened(browser, explorable / "page.html")


@pytest.fixture(scope="module")
def tokens(explorable: Path) -> pd.DataFrame:
    return read_artefact(explorable / "results", "influential_tokens")


def open_document(page: "sync_api.Page", start: str) -> str:
    """Open the document of this beginning; its ID."""
    page.get_by_role("searchbox", name="Search").fill(start)
    page.locator("#documents button").first.click()
    return page.locator("#documents button").first.get_attribute("data-id")


def expected_rows(tokens: pd.DataFrame, **where: object) -> list[list[str]]:
    rows = tokens
    for column, value in where.items():
        rows = rows[rows[column] == value]
    rows = rows.sort_values("rank")
    return [
        [str(rank), str(distance), "–" if pd.isna(influence) else f"{influence:+.3f}".replace("-", "−")]
        for rank, distance, influence in zip(rows["rank"], rows["distance"], rows["influence"], strict=True)
    ]


def shown_rows(page: "sync_api.Page") -> list[list[str]]:
    """Rank, distance and influence of each row of the table."""
    rows = page.locator("#tokens tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return [[rank, distance, influence] for rank, _, distance, influence, _ in rows]


def lit_tokens(page: "sync_api.Page") -> dict[int, str]:
    """Rank -> text of the tokens that light up in the text."""
    pairs = page.locator("#text .lit").evaluate_all(
        "found => found.map(token => [token.dataset.rank, token.textContent])"
    )
    return {int(rank): text for rank, text in pairs}


def shown_position(page: "sync_api.Page") -> int:
    return int(page.locator("#target-heading").inner_text().rpartition("position ")[2])


def set_k(page: "sync_api.Page", k: int) -> None:
    slider = page.get_by_role("slider", name="Influential tokens, k")
    slider.press("Home")
    for _ in range(KS.index(k)):
        slider.press("ArrowRight")


@pytest.mark.parametrize("rule", ["leave_one_out", "nearest"])
@pytest.mark.parametrize("far_context", ["own", "other_document"])
def test_a_click_shows_the_tokens_that_the_parquet_says(
    page: "sync_api.Page", explorable: Path, tokens: pd.DataFrame, rule: str, far_context: str
) -> None:
    document_id = open_document(page, "plain words")
    page.get_by_role("combobox", name="Rule").select_option(rule)
    page.get_by_role("radio", name="own" if far_context == "own" else "null: another document's").check()
    set_k(page, 8)
    data = TokenizedData.open(explorable / "data")
    tokenizer = load_tokenizer(data.folder / "tokenizer.json")
    (document,) = (one for one in data.evaluation_documents() if one.document_id == document_id)
    pieces = tokenizer.pieces(document.token_ids.tolist())
    for target in page.locator("#text .target").all()[::2]:
        target.click()
        where = {
            "model": MODELS[0], "document_id": document_id, "target_position": shown_position(page),
            "rule": rule, "far_context": far_context,
        }  # fmt: skip
        assert len(shown_rows(page)) == 8
        assert shown_rows(page) == expected_rows(tokens, **where)
        rows = tokens[(tokens[list(where)] == pd.Series(where)).all(axis=1)]
        in_the_text = {
            int(rank): pieces[place].strip(" ") or pieces[place]
            for rank, place in zip(rows["rank"], rows["context_position"], strict=True)
        }
        assert lit_tokens(page) == in_the_text
        words = page.locator("#tokens td.word").all_inner_texts()
        of_parquet = [tokenizer.pieces([token_id])[0] for token_id in rows["context_token_id"]]
        for word, piece in zip(words, of_parquet, strict=True):
            assert word == piece.replace(" ", "␣") or not piece.isprintable()


def test_the_slider_changes_tokens_and_loss(page: "sync_api.Page", explorable: Path) -> None:
    document_id = open_document(page, "plain words")
    page.locator("#text .target").nth(2).click()
    position = shown_position(page)
    losses = read_artefact(explorable / "results", "sparse_context_losses")
    losses = losses.set_index(["model", "document_id", "target_position", "rule", "far_context", "k"])
    target = (MODELS[0], document_id, position, "leave_one_out")
    for k in (1, 8, 2):
        set_k(page, k)
        assert sorted(lit_tokens(page)) == list(range(1, k + 1))
        assert page.locator("#k-value").inner_text() == str(k)
        own, null = losses.loc[(*target, "own", k)], losses.loc[(*target, "other_document", k)]
        expected = [
            own["short_context_loss"], own["sparse_context_loss"], null["sparse_context_loss"],
            own["long_context_loss"],
        ]  # fmt: skip
        shown = [float(number) for number in page.locator("#numbers dd").all_inner_texts()[:4]]
        assert shown == pytest.approx(expected, abs=6e-4)
        said = page.locator("#chart").get_attribute("aria-label")
        assert f"k = {k}: {shown[1]:.2f}"[:-1] in said


def test_the_keyboard_alone_goes_from_target_to_target(page: "sync_api.Page") -> None:
    open_document(page, "plain words")
    page.locator("#text .target[aria-pressed=true]").focus()
    places = []
    page.keyboard.press("Home")
    while not places or places[-1] != shown_position(page):
        places.append(shown_position(page))
        page.keyboard.press("ArrowRight")
    num_targets = page.locator("#text .target").count()
    assert len(places) == num_targets and places == sorted(set(places))
    page.keyboard.press("ArrowLeft")
    assert shown_position(page) == places[-2]
    page.keyboard.press("End")
    assert shown_position(page) == places[-1]
    focused = page.locator(":focus")
    assert focused.get_attribute("aria-pressed") == "true"
    assert "gain" in focused.get_attribute("aria-label")
    assert page.locator("#text [tabindex='0']").count() == 1


def test_tab_reaches_all_controls_and_the_list_moves_with_arrows(page: "sync_api.Page") -> None:
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.name"
            )
        )
    wanted = ["model", "rule", "far", "k", "search", "sort"]
    assert [name for name in reached if name in wanted] == wanted
    page.locator("#documents button[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#documents [aria-current=true]").get_attribute("data-id") == page.locator(
        "#documents button"
    ).nth(1).get_attribute("data-id")
    for role, name in (
        ("combobox", "Model"),
        ("combobox", "Rule"),
        ("combobox", "Sort by"),
        ("group", "Far context"),
    ):
        assert page.get_by_role(role, name=name).count() == 1
    assert page.get_by_role("heading", name="Target").count() == 1


def test_the_short_context_is_marked(page: "sync_api.Page") -> None:
    open_document(page, "plain words")
    page.locator("#text .target").first.click()
    near = page.locator("#text .chunk").first.evaluate(
        "chunk => [...chunk.querySelectorAll('.token')].map((t, i) => t.classList.contains('near') ? i : -1)"
    )
    place = shown_position(page)
    assert [i for i in near if i >= 0] == list(range(place - SHORT, place))


@pytest.mark.parametrize("text", HOSTILE, ids=["scripts", "handlers", "right-to-left", "emoji"])
def test_hostile_text_is_shown_as_text(page: "sync_api.Page", text: str) -> None:
    open_document(page, text[:9].lower())
    shown = "".join(page.locator("#text .chunk").all_text_contents())
    assert shown.startswith(text)
    # the elements are ours alone: nothing in the text became one
    assert page.locator("#text .chunk").first.evaluate(
        "chunk => [...chunk.querySelectorAll('*')].every(e => e.matches('span.token'))"
    )
    for target in page.locator("#text .target").all()[::3]:
        target.click()
    assert page.locator("script").count() == 2 + len(TEXTS) + 1  # header, code, documents
    assert page.locator("img, svg:not(#chart, #histogram), a").count() == 0


def contrast(page: "sync_api.Page", selector: str) -> float:
    """WCAG contrast of an element's text on its own background laid over the page's."""
    return page.locator(selector).first.evaluate(
        """element => {
          const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
          const pixel = (...colours) => {
            for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
            return canvas.getImageData(0, 0, 1, 1).data;
          };
          const luminance = ([...rgb]) => rgb.slice(0, 3).map((v) => v / 255)
            .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          const style = getComputedStyle(element), paper = getComputedStyle(document.body).backgroundColor;
          const [a, b] = [luminance(pixel(paper, style.backgroundColor)), luminance(pixel(style.color))];
          return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        }"""
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_dark(page: "sync_api.Page", scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 27)"}[scheme]
    open_document(page, "plain words")
    for hue in ("--helps", "--hurts"):
        page.locator("#text .target").first.evaluate(
            "(target, hue) => target.style.cssText = `--hue: var(${hue}); --depth: 1`", hue
        )
        assert contrast(page, "#text .target") >= 4.5
    for selector in ("#text .lit", "#text .chunk", "#about", "#legend", ".hint"):
        assert contrast(page, selector) >= 4.5, selector


def test_a_narrow_window_needs_no_sideways_scrolling(page: "sync_api.Page") -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    open_document(page, "one hundred")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
