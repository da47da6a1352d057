"""The pages of `explorer` and `explain` in a real headless Chromium: what is shown, and hostile text.

Skipped where there is no Chromium (Debian: `apt-get install chromium`).
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hugging_face_families import CHAT, save_chat_model
from olmo.model import OLMo
from sparsity_length.analysis import explorer
from test_explorer_records import MODELS, write_explorable

from sparsity_length import explain
from sparsity_length.pages import explained
from sparsity_length.results.read import Results
from sparsity_length.text.tokenizer import load_tokenizer

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
]
BAIT = "window.executed = true"
HOSTILE = [
    f"<script>{BAIT}</script></script><script>{BAIT}</script><!-- {{{{data}}}} ",
    f'<img src="x" onerror="{BAIT}"><svg onload="{BAIT}"><a href="javascript:{BAIT}">x</a>&lt;b&gt;&amp; ',
    "مرحبا بالعالم وهذا نص من اليمين إلى اليسار \u202eoverridden\u202c \u2066isolated\u2069 ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 ﷽ \u0000\u0007\u2028 \ufffd\ufffd 𝔘𝔫𝔦 ",
]
"""Texts that would run, or break a page that took them for anything but text."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["sync_api.BrowserContext"]:
    """A browser without a network."""
    with sync_api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-swap-networking",
                "--disable-component-update",
                "--disable-sync",
            ],
            headless=True,
            offline=True,
            viewport={"width": 1300, "height": 900},
        )
        yield context
        context.close()


@contextmanager
def opened(browser: "sync_api.BrowserContext", path: Path) -> Iterator["sync_api.Page"]:
    """A page, opened from disk; whatever it complains of, or asks for, fails the test."""
    page = browser.new_page()
    wrong: list[str] = []
    asked: list[str] = []
    for event in ("console", "pageerror", "dialog"):
        page.on(event, lambda found: wrong.append(str(found)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    yield page
    assert page.evaluate("window.executed") is None
    assert not wrong and all(url.startswith((path.as_uri(), "blob:")) for url in asked), [*wrong, *asked]
    page.close()


TEXTS = ["plain words of a shop in the street ", "=naïve “quotes” — 你好, and so on ", *HOSTILE]


@pytest.fixture(scope="module")
def explorable(tmp_path_factory: pytest.TempPathFactory, make_olmo: Callable[..., OLMo]) -> Path:
    """Results of the ablation `swap`, and their page."""
    folder = tmp_path_factory.mktemp("explorable")
    write_explorable(folder, [text * 12 for text in TEXTS], make_olmo, "--ablation", "swap")
    explorer.STAGE([str(folder / "results"), "--out", str(folder / "page.html")])
    return folder


@pytest.fixture
def page(browser: "sync_api.BrowserContext", explorable: Path) -> Iterator["sync_api.Page"]:
    with opened(browser, explorable / "page.html") as page:
        yield page


def open_document(page: "sync_api.Page", start: str) -> str | None:
    """Open the document of this beginning; its ID."""
    page.get_by_role("searchbox", name="Search").fill(start)
    first = page.locator("#documents button").first
    first.click()
    return first.get_attribute("data-id")


def cells(page: "sync_api.Page") -> list[list[str]]:
    """The texts of the table of tokens, row by row."""
    return page.locator("#tokens tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )


def signed(nats: float) -> str:
    """As the page shows it."""
    words = f"{nats:+.3f}".replace("-", "−")
    return {"+nan": "–", "+0.000": "0.000", "−0.000": "0.000"}.get(words, words)


@pytest.mark.parametrize(
    ("rule", "distant_context"), [("leave_one_out", "own"), ("recency", "other_document")]
)
def test_a_click_shows_the_tokens_that_the_parquet_says(
    page: "sync_api.Page", explorable: Path, rule: str, distant_context: str
) -> None:
    # Only the trial swapped tokens.
    assert "without the token" in str(page.locator("#influence-meaning").text_content())
    document_id = open_document(page, "plain words")
    page.get_by_role("combobox", name="Rule").select_option(rule)
    page.get_by_role("radio", name="own" if distant_context == "own" else "null: another document's").check()
    page.get_by_role("slider").press("End")
    pieces = load_tokenizer(explorable / "data" / "tokenizer.json").read(TEXTS[0] * 12).pieces
    found = Results(explorable / "results").frame("influential_tokens")
    keys = ["model", "document_id", "rule", "distant_context", "target_position"]
    chosen = found.set_index(keys).loc[MODELS[0], document_id, rule, distant_context]
    for target in page.locator("#text .target").all()[::2]:
        target.click()
        position = int(page.locator("#target-heading").inner_text().rpartition("position ")[2])
        rows = chosen.loc[position].sort_values("rank")
        assert [[rank, distance, influence] for rank, _, distance, influence, _ in cells(page)] == [
            [str(row.rank), str(row.distance), signed(row.influence)] for row in rows.itertuples()
        ]
        is_ranked = rows["influence"].fillna(0).is_monotonic_decreasing
        assert ("does not rank by the last column" in page.locator("caption").inner_text()) != is_ranked
        assert page.locator("#text .lit").count() == len(rows)
        lit = page.locator("#text .lit").evaluate_all(
            "found => Object.fromEntries(found.map(token => [token.dataset.rank, token.textContent]))"
        )
        places = rows.set_index("rank")["context_position"].items()
        assert lit == {str(rank): pieces[place].strip(" ") or pieces[place] for rank, place in places}


def test_the_first_target_has_tokens_where_only_one_chunk_was_searched(
    browser: "sync_api.BrowserContext", tmp_path: Path, make_olmo: Callable[..., OLMo]
) -> None:
    write_explorable(tmp_path, [text * 12 for text in TEXTS], make_olmo, "--max-chunks-per-document", "1")
    explorer.STAGE([str(tmp_path / "results"), "--out", str(tmp_path / "page.html")])
    results = Results(tmp_path / "results")
    num_losses, num_found = (
        results.frame(name)["chunk_index"].nunique() for name in ("loss_differences", "influential_tokens")
    )
    assert num_losses > num_found == 1
    with opened(browser, tmp_path / "page.html") as page:
        for document in page.locator("#documents button").all():
            document.click()
            assert cells(page)


def test_hostile_text_is_shown_as_text(page: "sync_api.Page") -> None:
    for text in HOSTILE:
        open_document(page, text[:9].lower())
        assert "".join(page.locator("#text .chunk").all_text_contents()).startswith(text)
        # the elements are ours alone: nothing in the text became one
        assert page.locator("#text .chunk").first.evaluate(
            "chunk => [...chunk.querySelectorAll('*')].every(e => e.matches('span.token'))"
        )
        for target in page.locator("#text .target").all()[::3]:
            target.dispatch_event("click")  # some take no room that a mouse could click at
    assert page.locator("script").count() == 2  # data, code
    assert page.locator("img, svg:not(#chart, #histogram), a").count() == 0


TEXT = "The cat sat on a mat, and the cat that sat there saw a dog in the hall. " * 5
COMMAND = "sparsity explain --model tiny"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("models") / "tiny", [TEXT, *HOSTILE], 300)


Shown = Callable[..., AbstractContextManager[tuple[explained.Explanation, "sync_api.Page"]]]
"""The fixture `shown`."""


@pytest.fixture
def shown(browser: "sync_api.BrowserContext", model: Path, tmp_path: Path) -> Shown:
    """A function explaining a text, and opening the page."""

    @contextmanager
    def show(text: Any, **flags: Any) -> Iterator[tuple[explained.Explanation, "sync_api.Page"]]:
        found = explain(text, model, short_context_length=4, **flags)
        found.save(tmp_path / "page.html", COMMAND)
        with opened(browser, tmp_path / "page.html") as page:
            yield found, page

    return show


def said_on_card(page: "sync_api.Page") -> list[str]:
    """The numbers that are in the card's line."""
    return page.locator("#card .line b").all_inner_texts()


def test_a_card_shows_what_was_measured(shown: Shown) -> None:
    """In the order of sources; and all of the text, also what was not read."""
    with shown(TEXT, targets=5, budget=3600) as (found, page):
        for target in found.record["targets"]:
            page.locator(f'.target[data-position="{target["position"]}"]').click()
            chosen = page.locator("#text .chosen")
            said = f"effect of distant text {target['total_effect']:.2f} nats (KL)", target["token"].strip()
            assert (chosen.get_attribute("title"), chosen.inner_text().strip()) == said
            names = ("probability", "probability_without", "probability_with_sources")
            assert said_on_card(page) == [explained._percent(target[name]) for name in names]
            labels = page.locator("#card .tag").all_inner_texts()
            assert labels == [explained._named(target, source) for source in target["sources"]]
            assert page.locator("#card ol .source").count() == len(target["sources"])
            # The tokens that light up in the text, a rank behind each last one.
            lit = page.locator("#text .source").evaluate_all(
                "found => found.map(token => token.textContent + (token.dataset.rank ?? '')).join('')"
            )
            sources = sorted(target["sources"], key=lambda source: source["source_position"])
            assert lit == "".join(f"{one['source']}{one['rank']}" for one in sources)
        unread = page.locator("#text .unread").text_content()
        read = "".join(page.locator("#text .token").all_text_contents())
        assert unread and unread + read == found.text.text
        page.keyboard.press("ArrowLeft")
        assert chosen.get_attribute("data-position") == str(found.targets[-2]["position"])


def test_what_is_not_explained_comes_with_its_command(
    browser: "sync_api.BrowserContext", model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on the page of losses alone, which is on disk before the first prediction is explained."""
    monkeypatch.setattr("sparsity_length.measuring.settings.Explaining.seconds", 1e-9)
    pages: list[explained.Explanation] = []
    explain(TEXT, model, short_context_length=4, show=pages.append)
    assert [len(found.targets) for found in pages] == [0, 1]
    for found in pages:
        found.save(tmp_path / "page.html", COMMAND)
        with opened(browser, tmp_path / "page.html") as page:
            assert "0 of 12 narrowed down to words" in page.locator("#missing").inner_text()
            assert f"{COMMAND} --targets 12 --budget" in page.locator("#missing code").inner_text()
            assert page.locator("#targets > li").count() == 12
            position = found.facts["wanted"][3]
            page.locator(f'.token[data-position="{position}"]').click()
            assert "Not explained" in page.locator("#card").inner_text()
            page.locator("#card .copy").click()
            copied = page.evaluate("String(getSelection())").strip()
            assert copied.startswith(f"{COMMAND} --position {position} ")
            assert copied == page.locator("#card code").inner_text()
            for target in found.targets:  # with passages
                page.locator(f'.token[data-position="{target["position"]}"]').click()
                assert "Whole passages" in page.locator("#card").inner_text()
                assert f"--position {target['position']} " in page.locator("#card code").inner_text()


def test_on_a_phone_the_card_is_under_the_line(shown: Shown) -> None:
    """And there is a way back from a source to the prediction."""
    with shown("\n\n".join([TEXT[:60]] * 40), targets=3, long_context_length=64) as (found, page):
        page.set_viewport_size({"width": 420, "height": 500})
        page.reload()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("#card").count() == 0
        token = page.locator(".target").last
        token.click()
        # The card is right under the token's line; tokens before it end above it, all others begin below.
        assert token.evaluate(
            """(token) => {
              const { top, bottom } = document.getElementById("card").getBoundingClientRect();
              const all = [...document.querySelectorAll("#text > *")];
              const place = all.findIndex((one) => one.id === "card");
              const box = (one) => one.getBoundingClientRect();
              const gap = top - box(token).bottom;
              const ends = all.slice(place - 3, place).every((one) => box(one).top < top);
              const begin = all.slice(place + 1).every((one) => box(one).bottom >= bottom);
              return 0 <= gap && gap < 40 && ends && begin;
            }"""
        )
        page.locator("#card ol .source").first.click()
        page.evaluate("scrollTo(0, 0)")
        page.locator("#back").click()
        page.wait_for_function(
            "() => { const box = document.querySelector('.chosen').getBoundingClientRect();"
            " return box.top >= 0 && box.bottom <= innerHeight; }"
        )
        assert not page.locator("#back").is_visible()
        page.locator("#card .close").click()
        assert page.locator("#card").count() == 0


def test_a_chat_and_its_whole_answer(shown: Shown) -> None:
    with shown(CHAT, long_context_length=60, whole_answer=True) as (found, page):
        (target,) = found.record["targets"]
        assert [*filter(None, page.locator("#text .label").all_text_contents())] == ["user", "assistant"]
        text = page.locator("#text").inner_text()
        assert "<|" not in text and CHAT[0]["content"] in text
        assert page.locator("#text .target").count() == target["end"] - target["position"]
        page.locator("#text .target").nth(2).click()
        assert said_on_card(page)[0] == explained._percent(target["probability"])
        assert page.locator("#text .chosen-part").count() == target["end"] - target["position"]


def test_of_two_continuations_the_card_says_how_many_times_as_likely(shown: Shown) -> None:
    with shown(TEXT, at="dog:3", instead="cow") as (found, page):
        assert said_on_card(page)[0] == explained._times(found.record["contrast"][2])
        assert found.facts["note"] in page.locator("#summary").inner_text()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_explained_as_text(text: str, shown: Shown) -> None:
    with shown(text * 3, targets=2, long_context_length=60, name=text) as (found, page):
        assert page.locator("#text").text_content() == found.text.text
        page.locator("#targets button").first.click()
        assert page.locator("script").count() == 2  # data, code
        assert page.locator("img, svg, a").count() == 0
