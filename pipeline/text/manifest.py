"""The manifest of tokenized data: what made it, what belongs to it, and that it is complete."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.results.provenance import describe_files, git_commit, package_versions, sha256_of_files
from pipeline.results.schemas import SCHEMA_VERSION
from pipeline.text.documents import Source, c4_revision
from pipeline.text.tokenizer import DocumentTokenizer

TRAIN_FOLDER = "train"
EVALUATION_FILE = "evaluation_documents/00000-of-00001.parquet"
TOKENIZER_FILE = "tokenizer.json"
MANIFEST_FILE = "manifest.json"
STAGES = ("tokenize_c4", "plant_needles")
"""Those that write such folders."""
COUNTS = (
    "train_documents",
    "train_tokens",
    "evaluation_documents",
    "evaluation_tokens",
    "duplicate",
    "empty",
    "malformed",
    "in_evaluation_source",
    "beyond_max_evaluation_documents",
)


def fingerprints(sources: Iterable[Source]) -> list[dict[str, str | None]]:
    """Name and SHA-256 of every source; the hub's files have no SHA-256, `c4_revision` stands for it."""
    return [
        {"file": source.short_name, "sha256": sha256_of_files(*source.files) if source.files else None}
        for source in sources
    ]


def make_manifest(
    folder: Path,
    configuration: Mapping[str, Any],
    tokenizer: DocumentTokenizer,
    paths: Sequence[Path],
    tally: Mapping[str, int],
    stage: str = "tokenize_c4",
) -> dict[str, Any]:
    """The manifest of a folder in which everything else is written.

    Args:
        folder: the folder.
        configuration: `settings` and `inputs`, all that decided the output.
        tokenizer: what encoded the text.
        paths: the files beside evaluation documents and tokenizer, those of training tokens in order.
        tally: what was counted, by the names in `COUNTS`.
        stage: of `STAGES`, which wrote it.
    """
    streams_c4 = any(entry["sha256"] is None for role in configuration["inputs"].values() for entry in role)
    return {
        "stage": stage,
        "schema_version": SCHEMA_VERSION,
        **configuration,
        "c4_revision": c4_revision() if streams_c4 else None,
        "counts": {name: tally[name] for name in COUNTS},
        "token_dtype": tokenizer.token_dtype.name,
        "vocabulary_size": tokenizer.vocabulary_size,
        "eos_token_id": tokenizer.eos_token_id,
        "files": describe_files(folder, [*paths, folder / EVALUATION_FILE, folder / TOKENIZER_FILE]),
        "git_commit": git_commit(),
        "packages": package_versions(),
    }


def refuse_empty_parts(counts: Mapping[str, int], configuration: Mapping[str, Any]) -> None:
    """Refuse data that cannot both train and evaluate.

    Raises:
        InputError: one of the parts is empty; says what was left out.
    """
    settings = configuration["settings"]
    left_out = ", ".join(f"{counts[reason]} {reason}" for reason in ("empty", "malformed", "duplicate"))
    if not counts["train_documents"]:
        limit = "" if settings["max_tokens"] is None else f", --max-tokens {settings['max_tokens']}"
        sources = [entry["file"] for entry in configuration["inputs"]["source"]]
        more = f" and {len(sources) - 3} more" if len(sources) > 3 else ""
        raise InputError(
            f"no training documents in {' '.join(sources[:3])}{more} (left out: {left_out};"
            f" {counts['in_evaluation_source']} that evaluate{limit})"
        )
    if not counts["evaluation_documents"]:
        raise InputError(
            f"no evaluation documents: none of {counts['train_documents']} documents fell to"
            f" --evaluation-fraction {settings['evaluation_fraction']}; raise it, or give --evaluation-source"
        )


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a complete folder; None where there is none.

    Raises:
        InputError: a manifest.json of some other program.
    """
    path = folder / MANIFEST_FILE
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("stage") not in STAGES:
        raise InputError(f"{path} is not a manifest that {' or '.join(STAGES)} wrote")
    return manifest


def check_sizes(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a folder whose files are not those that its manifest counts.

    Raises:
        InputError: a file is missing, or has another size.
    """
    for name, expected in manifest["files"].items():
        path = folder / name
        found = path.stat().st_size if path.exists() else None
        if found != expected["bytes"]:
            state = "is missing" if found is None else f"has {found} bytes, not {expected['bytes']}"
            raise InputError(f"{path} {state}; delete {folder} and run pipeline/{manifest['stage']}.py again")


def changed_settings(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase for every difference between two manifests in `settings` and `inputs`."""
    before, after = earlier["settings"], now["settings"]
    changes = [
        f"{name} was {before.get(name)!r}, now {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    for role, inputs in now["inputs"].items():
        changes += _changed_inputs(role, earlier["inputs"].get(role, []), inputs)
    return changes


def _changed_inputs(
    role: str, before: Sequence[Mapping[str, str | None]], after: Sequence[Mapping[str, str | None]]
) -> list[str]:
    """The phrase, if any, for another list of inputs; contents count, not where the files lie."""
    # The hub's C4 has no SHA-256: its name stands for it.
    known = [entry["sha256"] or entry["file"] for entry in before]
    if known == [entry["sha256"] or entry["file"] for entry in after]:
        return []
    new = [str(entry["file"]) for entry in after if (entry["sha256"] or entry["file"]) not in known]
    if not new:
        return [f"{role} has fewer files, or another order of them"]
    more = f" and {len(new) - 1} more" if len(new) > 1 else ""
    return [f"{role} {new[0]}{more} is new or has changed"]
