"""Which model a word of --checkpoints means, and loading it: a folder, or a name on the hub.

A model of the hub is fetched once into its cache, then a folder like any other.
"""

import json
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from sparsity_length.cli import InputError, path_of
from sparsity_length.models.checkpoints import (
    MARK_FILE,
    MODEL_FILES,
    errors_in_words,
    find_checkpoint,
    holds_olmo,
    read_configuration,
    refuse_damaged,
)
from sparsity_length.models.devices import usable_device
from sparsity_length.models.interface import CausalLM
from sparsity_length.models.settings import Loading
from sparsity_length.results.files import read_record, refuse_pointers, sha256_of_files
from sparsity_length.text.tokenizer import hub_folder, tokenizer_at


def _weight_files(folder: Path) -> list[Path]:
    """The weights that the library loads: what else a folder holds, other formats or old shards, is not."""
    for single in (folder / "model.safetensors", folder / "pytorch_model.bin"):
        index = single.with_name(f"{single.name}.index.json")
        if single.is_file():
            return [single]
        if index.is_file():
            with errors_in_words(f"{index} does not say which files hold the weights"):
                return [
                    folder / name for name in sorted({*json.loads(index.read_bytes())["weight_map"].values()})
                ]
    return []


def _is_enough(folder: Path) -> bool:
    """Whether a model can be loaded from a folder: configuration, tokenizer, and all its weights."""
    weights = _weight_files(folder)
    has_all = weights and all(path.is_file() for path in (folder / "config.json", *weights))
    return bool(has_all and tokenizer_at(folder))


def _snapshot(name: str, revision: str | None, with_code: bool) -> Path:
    """The folder of the hub's model `name`, at a branch, tag or commit; downloaded unless it is cached."""
    wanted = ["*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt", *(["*.py"] if with_code else [])]
    at = partial(hub_folder, name, revision, _is_enough, ignore_patterns="*/*")
    with errors_in_words(
        f"there is no folder {name}, and {name} at revision {revision or 'main'} is not in the cache and"
        " cannot be fetched from the Hugging Face hub"
    ):
        folder = at(allow_patterns=[*wanted, "model*.safetensors"])
        # Only then: .bin files are as large as the safetensors that most repositories have beside them.
        if not any(path.is_file() for path in _weight_files(folder)):
            at(allow_patterns="pytorch_model*.bin")
    return folder


@dataclass(frozen=True)
class Checkpoint:
    """A model that has been found and not yet loaded."""

    name: str
    """Results are filed under it."""
    folder: Path
    is_olmo: bool

    def files(self, with_code: bool) -> list[Path]:
        """The files that decide its numbers: configuration, weights, and its own code if that is run."""
        if self.is_olmo:
            return [self.folder / name for name in MODEL_FILES]
        code = sorted(self.folder.glob("*.py")) if with_code else []
        return [self.folder / "config.json", *_weight_files(self.folder), *code]

    def sha256(self, with_code: bool) -> str:
        """SHA-256, in hex, over `files`."""
        return sha256_of_files(*self.files(with_code))

    @property
    def own_tokenizer(self) -> Path | None:
        """The tokenizer that lies by it; by a run of pretrain.py in its data folder, named as studies do."""
        folder = self.folder.resolve()
        places = [folder]
        if self.is_olmo:
            # runs/demo/models/long/step600-unsharded finds runs/demo/data, three folders up.
            places += [folder.parent, *(above / "data" for above in list(folder.parents)[:3])]
        return next(filter(None, map(tokenizer_at, places)), None)

    def num_positions(self, trust_remote_code: bool = False) -> int | None:
        """How many positions the model was made for (RoPE can go beyond); None if that is not said."""
        if self.is_olmo:
            return OmegaConf.select(read_configuration(self.folder), "model.max_sequence_length")
        from sparsity_length.models.huggingface import configuration_of, position_limit  # late, as below

        return position_limit(configuration_of(self.folder, trust_remote_code), has_rotary_embedding=False)

    @property
    def training_facts(self) -> dict[str, Any]:
        """What a checkpoint's name and an OLMo configuration say of its training; None if unknown."""
        step = re.fullmatch(r"step(\d+)(-unsharded)?", self.folder.resolve().name)
        config = read_configuration(self.folder) if self.is_olmo else {}
        return {
            "train_step": int(step[1]) if step else None,
            # A stock OLMo configuration has no such field: its model was trained at full length.
            "train_context_length": config.get("train_context_length")
            or config.get("model", {}).get("max_sequence_length"),
            "position_scheme": config.get("position_scheme"),
            "seed": config.get("seed"),
        }


_ON_HUB = r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([\w./-]+))?"
"""NAME or OWNER/NAME, and what may stand behind @: a commit, a tag, a branch, which may have slashes."""


def name_of(word: str) -> str:
    """The name that results of the model `word` are filed under; nothing is downloaded.

    It is the run folder's, with the step if one was asked for.
    """
    path = Path(os.path.realpath(path_of(word)))
    name = path.name
    if not path.exists() and re.fullmatch(_ON_HUB, word):
        name = re.sub(r"^[^@/]*/", "", word).replace("/", "-")  # a branch may have slashes
    if path.exists() and (step := re.fullmatch(r"(step\d+)-unsharded", name)):
        name = f"{path.parent.name}-{step[1]}"
    return name.replace("@", "-")


def find_model(word: str, trust_remote_code: bool = False) -> Checkpoint:
    """The model that `word` means: an OLMo run or checkpoint, a Hugging Face folder, or a name on the hub.

    The hub's is NAME or NAME@REVISION, and downloaded here. A folder that exists wins over a name. InputError
    if there is no model, with the next step.
    """
    path = path_of(word)
    name = name_of(word)
    # "gpt2" may be a folder here or a name there: what exists here wins.
    on_hub = re.fullmatch(_ON_HUB, word)
    if on_hub and not path.exists() and path.suffix.lower() != ".gguf":
        path = _snapshot(on_hub[1], on_hub[2], trust_remote_code)
    if (path / "adapter_config.json").exists():  # loading would leave a LoRA out in silence
        raise InputError(
            f"{path} holds an adapter (adapter_config.json), which is not measured: merge it into its base"
            " model (peft's merge_and_unload, then save_pretrained), and name the folder of the merged model"
        )
    is_olmo = not ((path / "config.json").is_file() and _weight_files(path)) or holds_olmo(path)
    found = Checkpoint(name, find_checkpoint(path) if is_olmo else path, is_olmo)
    refuse_pointers(*found.files(with_code=False))
    return found


def load_causal_lm(checkpoint: Checkpoint, loading: Loading, num_positions: int) -> CausalLM:
    """Load a model that was found, to be given position IDs from 0 to `num_positions`, exclusive.

    InputError if it is broken, not a causal LM, or cannot take chosen position IDs.
    """
    device = usable_device(loading.device)
    dtype = getattr(torch, loading.dtype)
    # Each here, not above: ai2-olmo need not be installed, and transformers takes seconds to import.
    if checkpoint.is_olmo:
        if loading.rope is not None:
            raise InputError(
                f"--rope changes Hugging Face models, and {checkpoint.folder} is an OLMo checkpoint: export"
                " it first (export_huggingface.py)"
            )
        from sparsity_length.models.olmo import OLMoCausalLM, load_stock_olmo

        # Converted on the CPU, so that a GPU never holds the float32 weights.
        model = load_stock_olmo(checkpoint.folder).to(dtype)
        return OLMoCausalLM(model.to(device))
    from sparsity_length.models.huggingface import load_hugging_face

    files = checkpoint.files(loading.trust_remote_code)
    # Of an exported folder also what its numbers do not follow from: the tokenizer, the end tokens.
    marked = read_record(checkpoint.folder / MARK_FILE) or {"files": {}}
    refuse_damaged(checkpoint.folder, sorted({*marked["files"], *(path.name for path in files)}))
    return load_hugging_face(
        checkpoint.folder,
        device=device,
        dtype=dtype,
        num_positions=num_positions,
        device_map=loading.device_map,
        trust_remote_code=loading.trust_remote_code,
        rope=loading.rope,
    )
