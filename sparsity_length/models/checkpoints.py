"""Checkpoint folders: finding, writing and checking the files of a model.

<run folder>/step<N>-unsharded/       a checkpoint in OLMo's layout, as pipeline/pretrain.py writes them
    config.yaml  model.pt             what a model is loaded from
    optim.pt  train.pt                what a run resumes from, too
    complete.json                     {"files": {"model.pt": {"bytes": 1234, "sha256": "…"}, …}}, written last

A Hugging Face folder that this project exported has such a mark, too. What a mark names is compared with it
whenever a model is loaded.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from sparsity_length.cli import InputError, cause_of
from sparsity_length.results.files import damage, describe_files, read_record, sync, write_json

MARK_FILE = "complete.json"
MODEL_FILES = ("config.yaml", "model.pt")
_HINT = "put back the file that was saved, or take another checkpoint"


@contextmanager
def errors_in_words(sentence: str) -> Iterator[None]:
    """Turn whatever a library raises within into an InputError with this sentence, and what it says."""
    try:
        yield
    # By version and fault its own, torch's, pickle's, YAML's, safetensors', or of a model's remote code.
    except Exception as error:
        raise InputError(f"{sentence} ({type(error).__name__}: {cause_of(error)})") from error


def step_folders(run_folder: Path) -> dict[int, Path]:
    """Step -> `step<N>-unsharded` of a run folder, ascending, whatever is in them."""
    found = {
        int(match[1]): folder
        for folder in run_folder.glob("step*/")
        if (match := re.fullmatch(r"step(\d+)-unsharded", folder.name))
    }
    return dict(sorted(found.items()))


def newest_checkpoint(run_folder: Path) -> tuple[int, Path] | None:
    """Step and folder of the newest checkpoint, damaged or not; None if the run has none."""
    return max(step_folders(run_folder).items(), default=None)


@contextmanager
def whole_model(folder: Path) -> Iterator[Path]:
    """Yield a draft of a model's folder; on leaving it is marked, and becomes `folder`, which is new.

    A kill at any moment leaves the folder whole or absent.
    """
    draft = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        write_json(draft / MARK_FILE, {"files": describe_files(draft, sorted(draft.iterdir()))})
        # On the disk before the rename: after a power loss the name must not stand over empty files.
        for path in (*draft.iterdir(), draft):
            sync(path)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    sync(folder.parent)


def refuse_damaged(folder: Path, names: Sequence[str]) -> None:
    """Refuse a model one of whose files is damaged, by size and content, in an InputError that names it.

    Sizes and SHA-256 are compared with the mark. Another program's folder has none.
    """
    record = read_record(folder / MARK_FILE) or {"files": {}}
    marked = record["files"]
    for name in names:
        if fault := damage(folder / name, marked.get(name, {}), verify=name in marked):
            raise InputError(f"the checkpoint {folder} is damaged: {fault}; {_HINT}")


def read_tensors(path: Path, *, is_mapped: bool = False) -> dict[str, Any]:
    """Named tensors and plain values of a file of `torch.save`, on the CPU; never code, else an InputError.

    Mapped, they stay in the file, and take no memory: for tensors that are copied at once.
    """
    with errors_in_words(f"{path} is damaged, or was not written by torch.save as tensors; {_HINT}"):
        return dict(torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped))


def read_configuration(checkpoint: Path) -> Any:
    """What the config.yaml of an OLMo checkpoint, or of a run here, says; InputError if it cannot be read.

    A model whose attention was scaled, as earlier versions could, is refused: its losses would be others.
    """
    path = checkpoint / "config.yaml"
    with errors_in_words(f"{path} is not an OLMo configuration"):
        config: Any = OmegaConf.load(path)
        # Taken out, as a field that no longer exists would count as a changed setting of the run.
        scalings = {fields.pop("attention_scaling", "none") for fields in (config, config.get("model", {}))}
    if scalings != {"none"}:
        raise InputError(
            f"{path} scales attention (attention_scaling), which commit 30cc5e52 was the last to do"
        )
    return config


def holds_olmo(folder: Path) -> bool:
    """Whether a folder has the files that an OLMo model is loaded from."""
    return all((folder / name).is_file() for name in MODEL_FILES)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint folder that `path` means: itself, or the latest `step<N>-unsharded` of a run folder.

    A damaged one is not passed over: the step before it would be another result under the same name.
    """
    folders = [path] if holds_olmo(path) else [*step_folders(path).values()]
    if not folders:
        raise InputError(f"no model at {path}: {_next_step(path)}")
    return folders[-1]


def _next_step(path: Path) -> str:
    """What to name instead of a path without a model, by what is there."""
    if path.suffix.lower() == ".gguf" or any(path.glob("*.gguf")):
        return "GGUF is llama.cpp's format; name the model that it was made from, as a folder or on the hub"
    if path.is_file():
        return "it is a file; name the folder of the model that it is of"
    # Of a Trainer's run the last; repositories may hold a model in a folder of theirs, too.
    below = sorted(path.glob("*/config.json"), key=lambda file: (len(file.parent.name), file))
    if below:
        return f"name one below it, such as {below[-1].parent}"
    names = ", ".join(sorted(file.name for file in path.glob("[!.]*"))[:8])
    return (
        "name a folder with a Hugging Face model's config.json and weights, or with OLMo's config.yaml and"
        " model.pt, there or in a folder step<N>-unsharded below it; or a model of the hub as"
        f" owner/name (it holds {names or 'no file'})"
    )
