"""Provenance of a result: the commit and the packages that made it."""

import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("ai2-olmo", "accelerate", "datasets", "numpy", "pyarrow", "tokenizers", "torch", "transformers")


@cache
def provenance() -> dict[str, str | dict[str, str]]:
    """The commit of this checkout, and the installed version of every package that can change a number.

    The commit has `+changes` behind it if the tree differs from it, and is "unknown" outside git.
    """
    root = Path(__file__).resolve().parents[2]
    # No tags: `--always` then falls back on the hash, to which `--dirty` is added.
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    # Installed without its history, git would describe whatever repository is around it.
    is_checkout = (root / ".git").exists() and shutil.which("git")
    found = subprocess.run(command, cwd=root, capture_output=True, text=True).stdout if is_checkout else ""
    return {
        "git_commit": found.strip() or "unknown",
        "packages": {package: version(package) for package in _PACKAGES},
    }
