"""A real headless Chromium, and a page of planted results open in it; shared by the tests of the page.

Whoever imports the fixtures skips without a Chromium (Debian: `apt-get install chromium`).
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["sync_api.BrowserContext"]:
    profile = tmp_path_factory.mktemp("profile")
    with sync_api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, args=FLAGS, headless=True, offline=True,
            viewport={"width": 1300, "height": 900},
        )  # fmt: skip
        yield context
        context.close()


def opened(browser: "sync_api.BrowserContext", path: Path, address: str = "") -> Iterator["sync_api.Page"]:
    """The page, opened from disk; whatever it complains of, or asks for, fails the test."""
    page = browser.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on(
        "request", lambda asked: None if asked.url.startswith((url, "blob:")) else wrong.append(asked.url)
    )
    url = path.as_uri()
    page.goto(url + address)
    yield page
    assert page.evaluate("window.executed") is None
    assert wrong == []
    page.close()
