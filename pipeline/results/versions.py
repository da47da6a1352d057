"""Provenance of a result: fingerprints of its inputs, the commit and the packages that made it."""

import hashlib
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("ai2-olmo", "accelerate", "datasets", "numpy", "pyarrow", "tokenizers", "torch", "transformers")


def sha256_of_files(*paths: Path) -> str:
    """SHA-256, in hex, over the contents of `paths` in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            # A function that returns the digest begun: the files are hashed as one.
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


@cache
def git_commit() -> str:
    """The commit of this checkout, with `+changes` where the tree differs from it; "unknown" outside git."""
    root = Path(__file__).resolve().parents[2]
    # No tags: `--always` then falls back on the hash, to which `--dirty` is added.
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    # Installed without its history, git would describe whatever repository is around it.
    if not (root / ".git").exists() or shutil.which("git") is None:
        return "unknown"
    return subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.strip() or "unknown"


@cache
def package_versions() -> dict[str, str]:
    """Installed version of every package that can change a number."""
    return {package: version(package) for package in _PACKAGES}
