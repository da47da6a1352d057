"""The page of `explain` in a real headless Chromium: its cards, whole answers, phones, hostile text.

Skipped where there is no Chromium (Debian: `apt-get install chromium`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hugging_face_families import make_model
from in_chromium import HOSTILE, chromium, needs_chromium, opened, sync_api
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from sparsity_length import explain
from sparsity_length.pages import explained
from sparsity_length.pages.explained import Explanation
from sparsity_length.text.tokenizer import train_bpe

pytestmark = [pytest.mark.slow, needs_chromium]
TEXT = "The cat sat on a mat, and the cat that sat there saw a dog in the hall. " * 5
COMMAND = "sparsity explain --model tiny"
CHAT = [
    {"role": "user", "content": "where sat the cat, and what saw the cat there?"},
    {"role": "assistant", "content": "the cat sat on a mat"},
]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    inner = Tokenizer.from_str(train_bpe([TEXT, *HOSTILE], 300).to_json())
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", chat_template=TEMPLATE)
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    make_model("gpt_neox", vocab_size=len(fast)).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["sync_api.BrowserContext"]:
    with chromium(tmp_path_factory.mktemp("profile")) as context:
        yield context


def written(folder: Path, model: Path, text: Any, **flags: Any) -> tuple[Explanation, Path]:
    """An explanation and its page."""
    found = explain(text, str(model), short_context_length=4, **flags)
    found.save(folder / "page.html", COMMAND)
    return found, folder / "page.html"


def ranked(page: "sync_api.Page") -> dict[int, str]:
    """Rank -> text of the tokens up to there that light up as sources, in the text."""
    pairs = page.locator("#text .source").evaluate_all(
        "found => found.map(token => [token.dataset.rank, token.textContent])"
    )
    texts: dict[int, str] = {}
    words = ""
    for rank, piece in pairs:
        words += piece
        if rank is not None:
            texts[int(rank)] = words
            words = ""
    return texts


def test_a_card_shows_what_was_measured(
    browser: "sync_api.BrowserContext", model: Path, tmp_path: Path
) -> None:
    """In the order of sources; and all of the text, also what was not read."""
    found, path = written(tmp_path, model, TEXT, targets=5, budget=3600)
    with opened(browser, path) as page:
        for target in found.targets:
            page.locator(f'.target[data-position="{target["position"]}"]').click()
            title = page.locator("#text .chosen").get_attribute("title")
            assert title == f"effect of distant text {found_of(found, target)['total_effect']:.2f} nats (KL)"
            names = ("probability", "probability_without", "probability_with_sources")
            said = page.locator("#card .line b").all_inner_texts()
            assert said == [explained._percent(found_of(found, target)[name]) for name in names]
            labels = page.locator("#card .tag").all_inner_texts()
            assert labels == [explained._named(target, source) for source in target["sources"]]
            assert page.locator("#card ol .source").count() == len(target["sources"])
            lit = ranked(page)
            assert {rank: words.strip() for rank, words in lit.items()} == {
                source["rank"]: source["source"].strip() for source in target["sources"]
            }
            assert page.locator("#text .chosen").inner_text().strip() == target["token"].strip()
        unread = page.locator("#text .unread").text_content()
        read = "".join(page.locator("#text .token").all_text_contents())
        assert unread and unread + read == found.text.text
        page.keyboard.press("ArrowLeft")
        before_last = found.targets[-2]["position"]
        assert page.locator("#text .chosen").get_attribute("data-position") == str(before_last)


def found_of(found: Explanation, target: dict[str, Any]) -> dict[str, Any]:
    """The target as the page has it, rounded."""
    return next(one for one in found.record["targets"] if one["position"] == target["position"])


def test_what_is_not_explained_comes_with_its_command(
    browser: "sync_api.BrowserContext", model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsity_length.measuring.settings.Explaining.seconds", 1e-9)
    found, path = written(tmp_path, model, TEXT)
    assert len(found.targets) == 1
    position = found.facts["wanted"][3]
    with opened(browser, path) as page:
        assert "1 of 12" in page.locator("#missing").inner_text()
        assert f"{COMMAND} --targets 12 --budget" in page.locator("#missing code").inner_text()
        assert page.locator("#targets > li").count() == 12
        page.locator(f'.token[data-position="{position}"]').click()
        assert "Not explained" in page.locator("#card").inner_text()
        command = page.locator("#card code").inner_text()
        assert command.startswith(f"{COMMAND} --position {position} ")
        page.locator("#card .copy").click()
        assert page.evaluate("String(getSelection())").strip() == command


def test_a_page_of_losses_alone(browser: "sync_api.BrowserContext", model: Path, tmp_path: Path) -> None:
    """As it is on disk before the first prediction is explained."""
    first: list[Explanation] = []
    explain(TEXT, str(model), short_context_length=4, targets=2, show=first.append)
    first[0].save(tmp_path / "page.html", COMMAND)
    with opened(browser, tmp_path / "page.html") as page:
        assert "0 of 2" in page.locator("#missing").inner_text()
        page.locator("#targets button").first.click()
        assert f"--position {first[0].facts['wanted'][0]} " in page.locator("#card code").inner_text()


def test_on_a_phone_the_card_is_under_the_line(
    browser: "sync_api.BrowserContext", model: Path, tmp_path: Path
) -> None:
    """And there is a way back from a source to the prediction."""
    found, path = written(tmp_path, model, "\n\n".join([TEXT[:60]] * 40), targets=3, long_context_length=64)
    with opened(browser, path) as page:
        page.set_viewport_size({"width": 420, "height": 500})
        page.reload()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("#card").count() == 0
        token = page.locator(f'.target[data-position="{found.targets[-1]["position"]}"]')
        token.click()
        line = token.bounding_box()
        card = page.locator("#text #card").bounding_box()
        assert line is not None and card is not None
        assert 0 <= card["y"] - (line["y"] + line["height"]) < 40
        # Tokens before the card end above it, all others begin below.
        assert page.evaluate(
            """() => {
              const { top, bottom } = document.getElementById("card").getBoundingClientRect();
              const all = [...document.querySelectorAll("#text > *")];
              const place = all.findIndex((one) => one.id === "card");
              const box = (one) => one.getBoundingClientRect();
              const ends = all.slice(place - 3, place).every((one) => box(one).top < top);
              return ends && all.slice(place + 1).every((one) => box(one).bottom >= bottom);
            }"""
        )
        page.locator("#card ol .source").first.click()
        back = page.locator("#back")
        assert back.is_visible()
        page.evaluate("scrollTo(0, 0)")
        back.click()
        page.wait_for_function(
            "() => { const box = document.querySelector('.chosen').getBoundingClientRect();"
            " return box.top >= 0 && box.bottom <= innerHeight; }"
        )
        assert not back.is_visible()
        page.locator("#card .close").click()
        assert page.locator("#card").count() == 0


def test_a_chat_and_its_whole_answer(browser: "sync_api.BrowserContext", model: Path, tmp_path: Path) -> None:
    found, path = written(tmp_path, model, CHAT, long_context_length=60, whole_answer=True)
    (target,) = found.targets
    with opened(browser, path) as page:
        roles = page.locator("#text .label").all_text_contents()
        assert [*filter(None, roles)] == ["user", "assistant"]
        text = page.locator("#text").text_content()
        assert text is not None and "<|" not in text and CHAT[0]["content"] in text
        assert page.locator("#text .target").count() == target["end"] - target["position"]
        page.locator("#text .target").nth(2).click()
        said = page.locator("#card .line b").all_inner_texts()
        assert said[0] == explained._percent(found_of(found, target)["probability"])
        assert page.locator("#text .chosen-part").count() == target["end"] - target["position"]


def test_of_two_continuations_the_card_says_how_many_times_as_likely(
    browser: "sync_api.BrowserContext", model: Path, tmp_path: Path
) -> None:
    found, path = written(tmp_path, model, TEXT, at="dog:3", instead="cow")
    with opened(browser, path) as page:
        said = page.locator("#card .line b").all_inner_texts()
        assert said[0] == explained._times(found.record["contrast"][2])
        assert found.facts["note"] in page.locator("#summary").inner_text()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_text(
    text: str, browser: "sync_api.BrowserContext", model: Path, tmp_path: Path
) -> None:
    found, path = written(tmp_path, model, text * 3, targets=2, long_context_length=60, name=text)
    with opened(browser, path) as page:
        assert page.locator("#text").text_content() == found.text.text
        page.locator("#targets button").first.click()
        assert page.locator("script").count() == 2  # data, code
        assert page.locator("img, svg, a").count() == 0
