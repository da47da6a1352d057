"""What lies at a path where a model was looked for, and what to do about it: one sentence for each kind."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from pipeline.cli import InputError
from pipeline.results.files import is_lfs_pointer

ADAPTER_FILE = "adapter_config.json"
_OTHER_FORMATS = {
    "TensorFlow": ("tf_model*.h5", "saved_model.pb", "model.ckpt*"),
    "Flax": ("flax_model*.msgpack",),
    "ONNX": ("*.onnx", "onnx/*.onnx"),
    "MLX": ("weights*.npz",),
    "Meta's own": ("consolidated*.pth", "consolidated*.safetensors"),
    "DeepSpeed's own": ("zero_to_fp32.py", "global_step*"),
}
"""Of weights that cannot be read here -> files that tell."""


def refuse_adapter(folder: Path) -> None:
    """Refuse a LoRA adapter, alone or beside a model: loading would leave it out in silence."""
    if not (folder / ADAPTER_FILE).exists():
        return
    try:
        base = json.loads((folder / ADAPTER_FILE).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, TypeError, KeyError):
        base = None
    raise InputError(
        f"{folder} holds an adapter ({ADAPTER_FILE}), which is not measured: merge it into its base model"
        f"{f' {base}' if base else ''} first (peft's merge_and_unload, then save_pretrained), and name the"
        " folder of the merged model"
    )


def refuse_lfs_pointers(*paths: Path) -> None:
    """Refuse what Git LFS left in the place of a file that was not fetched."""
    for path in paths:
        if is_lfs_pointer(path):
            raise InputError(
                f"{path} is a Git LFS pointer and not the file itself; run `git lfs pull` in its repository"
            )


def refuse_other_weights(where: Path, model: str, left_over: Iterable[str], missing: Iterable[str]) -> None:
    """Refuse weights that `model` has no place for, or lacks: random numbers would stand in their place."""
    remedy = "put back the configuration that was saved with the weights, or save the causal LM anew"
    if names := sorted(missing):
        raise InputError(
            f"{where} lacks {len(names)} of the weights of {model}, such as {names[0]}: it was saved without"
            f" them, or is not a causal LM, or its configuration is another model's; {remedy}"
        )
    if names := sorted(left_over):
        raise InputError(
            f"{where} holds {len(names)} weights that {model} has no place for, such as {names[0]}, and that"
            f" would be left out; {remedy}"
        )


def no_name(word: str) -> InputError:
    """The error for what is no path and no name on the hub: nothing, or a URL."""
    what = f"{word} is a URL" if word else "the name of the model is empty"
    page = re.match(r"https?://huggingface\.co/([\w.-]+/[\w.-]+)", word)
    example = page[1] if page else "owner/name"
    return InputError(f"{what}; name a folder, a GGUF file, or a model of the Hugging Face hub, as {example}")


def without_weights(folder: Path) -> InputError:
    """The error for a Hugging Face folder whose config.json is there and whose weights are not."""
    for kind, patterns in _OTHER_FORMATS.items():
        if _first(folder, *patterns):
            return InputError(
                f"{folder} holds weights of the format {kind} only; save the model with transformers"
                " (save_pretrained), as model.safetensors"
            )
    return no_model(folder, f"{folder} has a config.json and no weights (model*.safetensors)")


def no_model(path: Path, what: str | None = None) -> InputError:
    """The error for a path that is no model; `what` is said where nothing there tells more."""
    if not path.exists():
        return InputError(
            f"there is no file or folder {path}; name the folder of a model, a GGUF file, or a model of the"
            " Hugging Face hub as owner/name"
        )
    if path.is_file():
        return InputError(f"{path} is a file; name the folder that holds the model, {path.resolve().parent}")
    return InputError(_next_step(path) or what or _nothing_known(path))


def _next_step(folder: Path) -> str | None:
    steps = _steps(folder)
    if ggufs := sorted(folder.glob("*.gguf")):
        return f"{folder} holds {len(ggufs)} GGUF files; name one of them, such as {ggufs[0]}"
    if trained := _by_number(folder, "checkpoint-*"):
        return f"{folder} is the folder of a Trainer; name one of its checkpoints, such as {trained[-1]}"
    if (folder / "model_and_optim").is_dir() or any((step / "model_and_optim").is_dir() for step in steps):
        return (
            f"{folder} is a checkpoint of OLMo-core (model_and_optim); convert it with OLMo-core's"
            " convert_checkpoint_to_hf.py, and name the Hugging Face folder that this writes"
        )
    for step in [*steps, folder]:
        if (step / "config.yaml").exists() and ((step / "model").is_dir() or _first(step, "rank*.pt")):
            return (
                f"{step} is a sharded checkpoint of OLMo; join it with OLMo's scripts/unshard.py, and name"
                " the step<N>-unsharded folder that this writes"
            )
    if steps:
        return (
            f"{folder} holds {steps[-1].name}, which is no step<N>-unsharded; join it with OLMo's"
            " scripts/unshard.py if it is sharded, or name a checkpoint's own folder"
        )
    for has, lacks in (("config.yaml", "model.pt"), ("model.pt", "config.yaml")):
        if (folder / has).exists():
            return f"{folder} has OLMo's {has} and not the {lacks} that belongs to it"
    inner = [path.parent for path in sorted((*folder.glob("*/config.json"), *folder.glob("*/*/config.json")))]
    if inner:
        return f"{folder} holds a model in a folder below it; name that, such as {inner[0]}"
    if (folder / "config.json").exists():
        return None
    if weights := _first(folder, "*.safetensors", "*.bin", "*.pth", "*.pt"):
        return f"{folder} has weights ({weights.name}) and no config.json, which says what model they are of"
    if _first(folder, "tokenizer*", "vocab.json", "merges.txt", "spiece.model"):
        return f"{folder} holds a tokenizer and no model; name the folder of a model"
    return None


def _nothing_known(folder: Path) -> str:
    return (
        f"no model at {folder}: expected a Hugging Face model's config.json and model.safetensors, OLMo's"
        " config.yaml and model.pt, there or in a folder step<N>-unsharded below it, or one GGUF file"
    )


def _steps(folder: Path) -> list[Path]:
    """OLMo's folders of steps that are not those of whole models."""
    return [path for path in _by_number(folder, "step*") if not path.name.endswith("-unsharded")]


def _by_number(folder: Path, pattern: str) -> list[Path]:
    numbered = [path for path in folder.glob(pattern) if path.is_dir() and re.search(r"\d", path.name)]
    return sorted(numbered, key=lambda path: int(re.findall(r"\d+", path.name)[0]))


def _first(folder: Path, *patterns: str) -> Path | None:
    return next((path for pattern in patterns for path in sorted(folder.glob(pattern))), None)
