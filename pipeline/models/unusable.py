"""Paths that are no model, and weights that are not the model's: one sentence for each."""

from collections.abc import Iterable
from pathlib import Path

from pipeline.cli import InputError
from pipeline.results.files import is_lfs_pointer

ADAPTER_FILE = "adapter_config.json"


def refuse_adapter(folder: Path) -> None:
    """Refuse a LoRA adapter, alone or beside a model: loading would leave it out in silence."""
    if (folder / ADAPTER_FILE).exists():
        raise InputError(
            f"{folder} holds an adapter ({ADAPTER_FILE}), which is not measured: merge it into its base model"
            " (peft's merge_and_unload, then save_pretrained), and name the folder of the merged model"
        )


def refuse_lfs_pointers(paths: Iterable[Path]) -> None:
    """Refuse what Git LFS left in the place of a file that was not fetched."""
    for path in filter(is_lfs_pointer, paths):
        raise InputError(f"{path} is a Git LFS pointer; run `git lfs pull` in its repository")


def refuse_other_weights(where: Path, model: str, left_over: Iterable[str], missing: Iterable[str]) -> None:
    """Refuse weights that `model` has no place for, or lacks: random numbers would stand in their place."""
    for what, names in (("lacks", sorted(missing)), ("has no place in it for", sorted(left_over))):
        if names:
            raise InputError(
                f"{where} is not the weights of {model}: it {what} {len(names)}, such as {names[0]}; put back"
                " the configuration that was saved with them, or save the causal LM anew"
            )


def no_model(path: Path) -> InputError:
    """The error for a path that is no model."""
    if not path.exists():
        return InputError(
            f"there is no file or folder {path}; name the folder of a model, a GGUF file, or a model of the"
            " Hugging Face hub as owner/name"
        )
    return InputError(
        f"no model at {path}: expected a Hugging Face model's config.json and model.safetensors, OLMo's"
        " config.yaml and model.pt, there or in a folder step<N>-unsharded below it, or one GGUF file"
    )
