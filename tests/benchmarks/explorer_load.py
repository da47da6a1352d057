"""How long the explorer's page takes to load in a real Chromium, of made-up numbers and as large as asked.

    python tests/benchmarks/explorer_load.py
    python tests/benchmarks/explorer_load.py --page runs/demo/explorer.html

The page is opened from disk, without a network, each time in a new tab: from the start of the navigation to
the event `load`, when the first target stands there, and to the frame that shows it. On a machine that does
other things too, look at the processor seconds of the browser's process of the page.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import BrowserContext, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/analysis")]

from explorer_browser import CHROMIUM, FLAGS

from pipeline.explorer_page.writing import NATS, Record, bytes_of_parts, numbers_of, page_of, to_json
from pipeline.text.sources import first_passages

MODELS = ["long-seed0", "short-pose-seed0"]
RULES = ["leave_one_out", "leave_one_out_divergence", "add_one_in_divergence"]
KS = [1, 2, 4, 8, 16]
SHORT, LONG, TARGETS, CHUNKS = 16, 256, 16, 2
VOCABULARY = 4096
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
SHOWN = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    flags.add_argument("--megabytes", type=float, default=20, help="size of the page")
    flags.add_argument(
        "--loads", type=int, default=7, help="how often it is opened; the first does not count"
    )
    flags.add_argument("--page", type=Path, help="a page to be opened in the place of a made-up one")
    return flags


def main(arguments: argparse.Namespace) -> None:
    """Make the page, open it, report medians."""
    with tempfile.TemporaryDirectory() as folder:
        page = arguments.page or Path(folder) / "page.html"
        if arguments.page is None:
            page.write_text(made_up_page(arguments.megabytes), encoding="utf-8")
        loads = loaded(page.resolve(), Path(folder) / "profile", arguments.loads)
        megabytes = page.stat().st_size / 1e6
    medians = {name: round(statistics.median(load[name] for load in loads), 3) for name in loads[0]}
    report = {"megabytes": round(megabytes, 1), "loads": len(loads)} | medians
    sys.stdout.write(f"{json.dumps(report, indent=2)}\n")


def made_up_page(megabytes: float) -> str:
    """A page of so many documents as fit."""
    generator, words = np.random.default_rng(0), " ".join(first_passages(20_000)).split()
    header: dict[str, Any] = {
        "results": "made up", "models": MODELS, "rules": RULES, "k": KS, "intervention": "remove",
        "short_context_length": SHORT, "long_context_length": LONG, "targets_per_chunk": TARGETS,
        "recovery_fraction": 0.9, "minimum_gain": 0.1, "unit_nats": NATS, "left_out": [],
        "null_pieces": {str(id_): f" {words[id_ % len(words)]}" for id_ in range(VOCABULARY)},
    }  # fmt: skip
    room = megabytes * 1e6 - bytes_of_parts() - len(to_json(header))
    documents: list[tuple[Record, str]] = []
    while True:
        record = made_up_record(f"{len(documents):016x}", words, generator)
        encoded = to_json(record)
        room -= len(encoded.encode()) + len(to_json(numbers_of(record)).encode())
        if room < 0:
            return page_of(header, documents)
        documents.append((record, encoded))


def made_up_record(name: str, words: list[str], generator: np.random.Generator) -> Record:
    """A document of random words and numbers."""

    def numbers(*shape: int, below: int = 4000) -> list[Any]:
        return generator.integers(0, below, shape).tolist()

    def pieces() -> list[str]:
        return [f" {words[place]}" for place in generator.integers(0, len(words), LONG)]

    def chosen() -> Record:
        names = {"loss": len(KS), "kl": len(KS), "influence": KS[-1], "moved": KS[-1]}
        columns = {column: numbers(TARGETS, size) for column, size in names.items()}
        return columns | {"distance": numbers(TARGETS, KS[-1], below=LONG - SHORT - TARGETS)}

    def of_rule() -> Record:
        k_star = {criterion: numbers(TARGETS, below=5) for criterion in ("loss", "divergence")}
        null = chosen() | {"token": numbers(TARGETS, KS[-1], below=VOCABULARY)}
        return {"k_star": k_star, "own": chosen(), "other_document": null}

    def of_model() -> Record:
        losses = {column: numbers(TARGETS) for column in ("short", "long", "expected", "specific")}
        return losses | {"rules": {rule: of_rule() for rule in RULES}}

    chunks = [
        {
            "start": index * LONG, "pieces": pieces(), "null": {"id": "other", "pieces": pieces()},
            "targets": list(range(LONG - TARGETS, LONG)), "models": {model: of_model() for model in MODELS},
        }
        for index in range(CHUNKS)
    ]  # fmt: skip
    return {"id": name, "num_tokens": CHUNKS * LONG, "chunks": chunks}


def loaded(path: Path, profile: Path, num_loads: int) -> list[dict[str, float]]:
    """Seconds of each load but the first."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, args=FLAGS, headless=True, offline=True
        )
        loads = [_load(browser, path) for _ in range(num_loads)]
        browser.close()
    return loads[1:]


def _load(browser: BrowserContext, path: Path) -> dict[str, float]:
    page = browser.new_page()
    page.goto(path.as_uri())
    shown = page.evaluate(SHOWN)
    assert page.locator("#text .target[aria-pressed=true]").count() == 1
    session = browser.new_cdp_session(page)
    session.send("Performance.enable")
    metrics = session.send("Performance.getMetrics")["metrics"]
    seconds = {
        "load_seconds": page.evaluate(LOADED) / 1000,
        "shown_seconds": shown / 1000,
        "processor_seconds": next(each["value"] for each in metrics if each["name"] == "ProcessTime"),
    }
    page.close()
    return seconds


if __name__ == "__main__":
    main(parser().parse_args())
