"""A page from disk in a real headless Chromium, as tests open it (Debian: `apt-get install chromium`)."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-swap-networking",
    "--disable-component-update",
    "--disable-sync",
]
BAIT = "window.executed = true"
HOSTILE = [
    f"<script>{BAIT}</script></script><script>{BAIT}</script><!-- {{{{data}}}} ",
    f'<img src="x" onerror="{BAIT}"><svg onload="{BAIT}"><a href="javascript:{BAIT}">x</a>&lt;b&gt;&amp; ',
    "مرحبا بالعالم وهذا نص من اليمين إلى اليسار \u202eoverridden\u202c \u2066isolated\u2069 ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 ﷽ \u0000\u0007\u2028 \ufffd\ufffd 𝔘𝔫𝔦 ",
]
"""Texts that would run, or break a page that took them for anything but text."""


@contextmanager
def chromium(profile: Path) -> Iterator["sync_api.BrowserContext"]:
    """A browser without a network."""
    with sync_api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=CHROMIUM,
            args=FLAGS,
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
    url = path.as_uri()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on(
        "request", lambda asked: None if asked.url.startswith((url, "blob:")) else wrong.append(asked.url)
    )
    page.goto(url)
    yield page
    assert page.evaluate("window.executed") is None
    assert wrong == []
    page.close()
