"""A picture of a page, as of explain.py or explorer.py, made by a headless Chromium.

  python pipeline/explain.py --model HuggingFaceTB/SmolLM2-135M --text-file letter.txt --out letter.html
  python analysis/screenshot.py letter.html --out letter.png

Chromium must be installed (Debian: apt-get install chromium). Nothing is loaded from a network.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
import shutil
import subprocess
import tempfile

from pipeline.cli import InputError, file_path, logger, positive_int, stage_parser

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_LONGEST_SECONDS = 180


def parser() -> argparse.ArgumentParser:
    """The command line."""
    stage = stage_parser(__doc__)
    stage.add_argument("page", type=file_path, help="the HTML file")
    stage.add_argument("--out", type=file_path, default=Path("page.png"), help="the picture, a PNG")
    stage.add_argument("--width", type=positive_int, default=1400, help="of the window, in pixels")
    stage.add_argument("--height", type=positive_int, default=900, help="likewise")
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Open the page in a window of this size, and keep what it shows."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise InputError(
            f"none of {', '.join(_BROWSERS)} is installed; install one (apt-get install chromium)"
        )
    with tempfile.TemporaryDirectory() as profile:
        words = [
            browser, *_FLAGS, f"--user-data-dir={profile}", f"--screenshot={arguments.out.resolve()}",
            f"--window-size={arguments.width},{arguments.height}", arguments.page.resolve().as_uri(),
        ]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False)
    if done.returncode or not arguments.out.is_file():
        raise InputError(f"{browser} made no picture: {done.stderr.strip().rpartition(chr(10))[2]}")
    logger.info("%s shows %s", arguments.out, arguments.page)
