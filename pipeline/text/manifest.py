"""The manifest of tokenized data: what made it, what belongs to it, and that it is complete."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.results.provenance import describe_files, git_commit, package_versions, sha256_of_files
from pipeline.results.schemas import SCHEMA_VERSION
from pipeline.text.documents import Source, c4_revision
from pipeline.text.manifest_checks import fault_of_manifest
from pipeline.text.tokenizer import DocumentTokenizer

TRAIN_FOLDER = "train"
EVALUATION_FILE = "evaluation_documents/00000-of-00001.parquet"
TOKENIZER_FILE = "tokenizer.json"
TOKEN_COUNTS_FILE = "train_token_counts.bin"
"""How often each token occurs among the training tokens, EOS never: int64, little-endian, [V]."""
MANIFEST_FILE = "manifest.json"
STAGES = ("tokenize_c4", "plant_needles", "plant_signs")
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
    return {
        "stage": stage,
        "schema_version": SCHEMA_VERSION,
        **configuration,
        "c4_revision": c4_revision_of(configuration),
        "counts": {name: tally[name] for name in COUNTS},
        "token_dtype": tokenizer.token_dtype.name,
        "vocabulary_size": tokenizer.vocabulary_size,
        "eos_token_id": tokenizer.eos_token_id,
        "files": describe_files(folder, [*paths, folder / EVALUATION_FILE, folder / TOKENIZER_FILE]),
        "git_commit": git_commit(),
        "packages": package_versions(),
    }


def c4_revision_of(configuration: Mapping[str, Any]) -> str | None:
    """The commit of C4 on the hub that is read; None where nothing is streamed.

    Raises:
        InputError: the hub cannot be reached.
    """
    streams_c4 = any(entry["sha256"] is None for role in configuration["inputs"].values() for entry in role)
    return c4_revision() if streams_c4 else None


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
        InputError: a manifest.json of some other program, or a damaged one.
    """
    path = folder / MANIFEST_FILE
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("stage") not in STAGES:
        raise InputError(f"{path} is not a manifest that {' or '.join(STAGES)} wrote")
    fault = fault_of_manifest(manifest)
    if fault is not None:
        raise InputError(
            f"{path} is damaged or of a newer version: {fault}; remove it and run"
            f" pipeline/{manifest['stage']}.py again as it was run for {folder}"
        )
    return manifest


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
