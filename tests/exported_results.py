"""Results folders that a test changed by hand, vouched for as they are."""

from pathlib import Path

from pipeline.results.export import write_manifest


def vouch_for(results: Path) -> Path:
    """Make an export of a results folder as it lies there, in place of its stages' completion marks."""
    for mark in results.glob("_stages/*/*/*.done"):
        mark.unlink()
    write_manifest(results)
    return results
