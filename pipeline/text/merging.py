"""What many tasks wrote made into one data set: a manifest of their files, their evaluation documents.

Training tokens stay where the tasks wrote them; nothing large is copied.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.results.files import write_atomically, write_json
from pipeline.results.missing import as_ranges
from pipeline.results.provenance import describe_files
from pipeline.text.evaluation_documents import (
    EvaluationSample,
    read_evaluation_documents,
    write_evaluation_documents,
)
from pipeline.text.manifest import (
    EVALUATION_FILE,
    MANIFEST_FILE,
    TOKENIZER_FILE,
    changed_settings,
    read_manifest,
    refuse_empty_parts,
)
from pipeline.text.manifest_checks import refuse_damage
from pipeline.text.tasks import TokenizationTask, task_folders
from pipeline.text.token_counts import training_token_counts, write_token_counts
from pipeline.text.tokenized_data import TokenizedData, is_complete
from pipeline.text.unfinished import read_made_by


def refuse_other_tasks(out: Path, task: TokenizationTask, configuration: Mapping[str, Any]) -> None:
    """Refuse to add a task's part to those of another tokenizer, of other settings or of another division.

    Raises:
        InputError: `out` holds such tasks, or data made in one piece.
    """
    others = task_folders(out)
    for other in others:
        if other.num_tasks != task.num_tasks:
            raise InputError(
                f"{out} holds tasks of --num-tasks {other.num_tasks}, now {task.num_tasks};"
                " choose another --out folder, or repeat the earlier number"
            )
    if task.is_whole:
        return
    inputs = {role: files for role, files in configuration["inputs"].items() if role != "source"}
    # All tasks agree with one another, as each was checked so: one finished and one begun stand for them.
    merged, finished = read_manifest(out), next(filter(None, map(read_manifest, others.values())), None)
    begun = next(filter(None, map(read_made_by, others.values())), None)
    for manifest in filter(None, (merged, finished, begun)):
        changes = changed_settings(manifest, {**configuration, "inputs": inputs})
        if changes:
            raise InputError(
                f"{out} holds data made otherwise: {'; '.join(changes)};"
                " choose another --out folder, or repeat the earlier command"
            )


def merge_tasks(out: Path, *, verify: bool = False) -> dict[str, Any] | None:
    """Write the manifest, the evaluation documents and the tokenizer of all tasks in `out`.

    Returns:
        The manifest, or None where the same was there already.

    Raises:
        InputError: tasks are missing, or were made otherwise than others.
    """
    folders = _complete_folders(out)
    manifests = [read_manifest(folder) if folder.exists() else None for folder in folders]
    missing = [index for index, manifest in enumerate(manifests) if manifest is None]
    if missing:
        raise InputError(
            f"{out} misses {len(missing)} of {len(folders)} tasks: --task-index {as_ranges(missing)};"
            " run these, then --merge again"
        )
    finished = [manifest for manifest in manifests if manifest is not None]
    for index, (folder, manifest) in enumerate(zip(folders, finished, strict=True)):
        _refuse_mixture(index, manifest, finished[0])
        refuse_damage(folder, manifest, verify=verify)
    inputs = {**finished[0]["inputs"], "source": [f for m in finished for f in m["inputs"]["source"]]}
    if is_complete(out, {"settings": finished[0]["settings"], "inputs": inputs}, verify=verify):
        return None
    sample = EvaluationSample(finished[0]["settings"]["max_evaluation_documents"])
    counts = _merge_counts(folders, finished, sample)
    merged = {**finished[0], "inputs": inputs, "counts": counts}
    refuse_empty_parts(counts, merged)
    _write(out, folders, merged, finished, sample)
    return merged


def _complete_folders(out: Path) -> list[Path]:
    """The folders of all tasks that belong together, whether there or not, in order."""
    tasks = task_folders(out)
    numbers = sorted({task.num_tasks for task in tasks})
    if not numbers:
        raise InputError(f"no tasks in {out}; run pipeline/tokenize_c4.py with --num-tasks first")
    if len(numbers) > 1:
        raise InputError(
            f"{out} holds tasks of several divisions, --num-tasks {' and '.join(map(str, numbers))};"
            " delete those that do not belong"
        )
    return [TokenizationTask(index, numbers[0]).folder(out) for index in range(numbers[0])]


def _refuse_mixture(index: int, manifest: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    inputs = {role: files for role, files in manifest["inputs"].items() if role != "source"}
    changes = changed_settings(first, {**manifest, "inputs": inputs})
    if manifest["c4_revision"] != first["c4_revision"]:
        changes.append(f"C4's revision was {first['c4_revision']}, now {manifest['c4_revision']}")
    if changes:
        raise InputError(
            f"task {index} was made otherwise than task 0: {'; '.join(changes)};"
            " delete the folder of one and run its command again"
        )


def _merge_counts(
    folders: Sequence[Path], manifests: Sequence[Mapping[str, Any]], sample: EvaluationSample
) -> dict[str, int]:
    """The counts of the whole; the evaluation documents of all tasks go to `sample`."""
    counts: Counter[str] = Counter()
    for folder, manifest in zip(folders, manifests, strict=True):
        counts.update(manifest["counts"])
        for document in read_evaluation_documents(folder / EVALUATION_FILE):
            counts["duplicate"] += not sample.add(document)
    kept = sample.documents()
    counts["evaluation_documents"] = len(kept)
    counts["evaluation_tokens"] = sum(len(document.token_ids) for document in kept)
    counts["beyond_max_evaluation_documents"] += sample.num_left_out
    return {name: counts[name] for name in manifests[0]["counts"]}


def _write(
    out: Path,
    folders: Sequence[Path],
    merged: dict[str, Any],
    manifests: Sequence[Mapping[str, Any]],
    sample: EvaluationSample,
) -> None:
    train_files = {
        f"{folder.relative_to(out).as_posix()}/{name}": description
        for folder, manifest in zip(folders, manifests, strict=True)
        for name, description in manifest["files"].items()
        if name.endswith(".npy")
    }
    write_evaluation_documents(out / EVALUATION_FILE, sample.documents())
    tokenizer_json = (folders[0] / TOKENIZER_FILE).read_bytes()
    write_atomically(out / TOKENIZER_FILE, lambda path: path.write_bytes(tokenizer_json))
    own_paths = [*_write_token_counts(out, folders), out / EVALUATION_FILE, out / TOKENIZER_FILE]
    own_files = describe_files(out, own_paths)
    write_json(out / MANIFEST_FILE, {**merged, "files": train_files | own_files})


def _write_token_counts(out: Path, folders: Sequence[Path]) -> list[Path]:
    """The counts of all tasks, where there are training tokens."""
    parts = [TokenizedData.open(folder) for folder in folders]
    counts = [training_token_counts(part) for part in parts if part.train_paths]
    return [write_token_counts(out, np.sum(counts, axis=0))] if counts else []
