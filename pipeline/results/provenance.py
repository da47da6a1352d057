"""Where a result came from: fingerprints of its inputs, the commit and the packages that made it."""

import hashlib
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("ai2-olmo", "accelerate", "datasets", "numpy", "pyarrow", "tokenizers", "torch")


def sha256_of_files(*paths: Path) -> str:
    """SHA-256, in hex, over the contents of `paths` in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


@lru_cache(maxsize=1)
def git_commit() -> str:
    """The commit of this checkout, with `+changes` where the tree differs from it; "unknown" outside git."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return "unknown"
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        changes = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=root, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + ("+changes" if changes.stdout.strip() else "")


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
