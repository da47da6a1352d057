"""Where a result came from: fingerprints of its inputs, the commit and the packages that made it."""

import hashlib
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("ai2-olmo", "accelerate", "datasets", "numpy", "pyarrow", "tokenizers", "torch", "transformers")


def sha256_of_files(*paths: Path) -> str:
    """SHA-256, in hex, over the contents of `paths` in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def describe_files(folder: Path, paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of files, by their names in `folder`."""
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of_files(path)}
        for path in paths
    }


@lru_cache(maxsize=1)
def git_commit() -> str:
    """The commit of this checkout, with `+changes` where the tree differs from it; "unknown" outside git."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return "unknown"

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+changes" if changes else "")


@lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    """Installed version of every package that can change a number."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions
