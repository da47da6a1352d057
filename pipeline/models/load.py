"""Which model a word of --checkpoints means, and loading it: a folder, or a name on the hub.

<run folder>/step<N>-unsharded/       a checkpoint in OLMo's layout, as pipeline/pretrain.py writes them
    config.yaml  model.pt             what a model is loaded from
    optim.pt  train.pt                what a run goes on from, too
    complete.json                     {"files": {"model.pt": {"bytes": 1234, "sha256": "…"}, …}}, written last

A Hugging Face folder that this project exported has such a mark, too. What a mark names is compared with it
whenever a model is loaded. A model of the hub is fetched once into its cache, then a folder like any other.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from omegaconf import OmegaConf

from pipeline.cli import InputError, cause_of
from pipeline.models.interface import CausalLM
from pipeline.results.files import damage, describe_files, read_record, sync, write_json
from pipeline.text.tokenizer import tokenizer_at

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


def write_mark(folder: Path) -> None:
    """Mark a model's folder, whose files are all written, as complete."""
    write_json(folder / MARK_FILE, {"files": describe_files(folder, sorted(folder.iterdir()))})


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
    """What the config.yaml of an OLMo checkpoint, or of a run here, says; InputError where it cannot be read.

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


def _holds_olmo(folder: Path) -> bool:
    return all((folder / name).is_file() for name in MODEL_FILES)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint folder that `path` means: itself, or the latest `step<N>-unsharded` of a run folder.

    A damaged one is not passed over: the step before it would be another result under the same name.
    """
    folders = [path] if _holds_olmo(path) else [*step_folders(path).values()]
    if not folders:
        raise InputError(
            f"no model at {path}: name a folder with a Hugging Face model's config.json, or with OLMo's"
            " config.yaml and model.pt, there or in a folder step<N>-unsharded below it; or a model of the"
            " Hugging Face hub as owner/name"
        )
    return folders[-1]


def _weight_files(folder: Path) -> list[Path]:
    """Weights by the names of `save_pretrained`; many repositories hold the same in other formats, too."""
    return sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def _snapshot(name: str, revision: str | None, with_code: bool) -> Path:
    """The folder of the hub's model `name`, at a branch, tag or commit; downloaded unless it is cached."""
    wanted = ["*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt", *(["*.py"] if with_code else [])]
    at: dict[str, Any] = {"revision": revision, "ignore_patterns": "*/*"}
    with errors_in_words(
        f"there is no folder {name}, and {name} at revision {revision or 'main'} is not in the cache and"
        " cannot be fetched from the Hugging Face hub"
    ):
        folder = Path(snapshot_download(name, **at, allow_patterns=[*wanted, "model*.safetensors"]))
        # Only then: .bin files are as large as the safetensors that most repositories have beside them.
        if not _weight_files(folder):
            snapshot_download(name, **at, allow_patterns="pytorch_model*.bin")
    return folder


@dataclass(frozen=True)
class Loading:
    """How models are loaded; what stands last is for Hugging Face models (see `load_hugging_face`)."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    device_map: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """A model that has been found and not yet loaded."""

    name: str
    """Results are filed under it."""
    folder: Path
    is_olmo: bool

    def files(self, with_code: bool) -> list[Path]:
        """The files that decide its numbers: configuration, weights, and its own code where that is run."""
        if self.is_olmo:
            return [self.folder / name for name in MODEL_FILES]
        code = sorted(self.folder.glob("*.py")) if with_code else []
        return [self.folder / "config.json", *_weight_files(self.folder), *code]

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
        """How many positions the model was made for (RoPE can go beyond); None where that is not said."""
        if self.is_olmo:
            return OmegaConf.select(read_configuration(self.folder), "model.max_sequence_length")
        from pipeline.models.huggingface import configuration_of, position_limit  # late, as below

        return position_limit(configuration_of(self.folder, trust_remote_code), has_rotary_embedding=False)

    @property
    def training_facts(self) -> dict[str, Any]:
        """What a checkpoint's name and an OLMo configuration say of its training; None where unknown."""
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


_ON_HUB = r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([\w.-]+))?"
"""NAME or OWNER/NAME, and what may stand behind @."""


def name_of(word: str) -> str:
    """The name that results of the model `word` are filed under; nothing is downloaded.

    It is the run folder's, with the step if one was asked for.
    """
    path = Path(word).resolve() if Path(word).exists() else Path(word)
    name = path.name
    if path.exists() and (step := re.fullmatch(r"(step\d+)-unsharded", name)):
        name = f"{path.parent.name}-{step[1]}"
    return name.replace("@", "-")


def find_model(word: str, trust_remote_code: bool = False) -> Checkpoint:
    """The model that `word` means: an OLMo run or checkpoint, a Hugging Face folder, or a name on the hub.

    The hub's is NAME or NAME@REVISION, and downloaded here. A folder that exists wins over a name. InputError
    if there is no model, with the next step.
    """
    path = Path(word)
    name = name_of(word)
    # "gpt2" may be a folder here or a name there: what exists here wins.
    on_hub = re.fullmatch(_ON_HUB, word)
    if on_hub and not path.exists():
        path = _snapshot(on_hub[1], on_hub[2], trust_remote_code)
    if (path / "adapter_config.json").exists():  # loading would leave a LoRA out in silence
        raise InputError(
            f"{path} holds an adapter (adapter_config.json), which is not measured: merge it into its base"
            " model (peft's merge_and_unload, then save_pretrained), and name the folder of the merged model"
        )
    if (path / "config.json").is_file() and not _holds_olmo(path):
        return Checkpoint(name, path, False)
    return Checkpoint(name, find_checkpoint(path), True)


def load_causal_lm(checkpoint: Checkpoint, loading: Loading, num_positions: int) -> CausalLM:
    """Load a model that was found, to be given position IDs from 0 to `num_positions`, exclusive.

    InputError where it is broken, not a causal LM, or cannot take chosen position IDs.
    """
    # Each here, not above: ai2-olmo need not be installed, and transformers takes seconds to import.
    if checkpoint.is_olmo:
        from pipeline.models.olmo import OLMoCausalLM, load_stock_olmo

        # Converted on the CPU, so that a GPU never holds the float32 weights.
        model = load_stock_olmo(checkpoint.folder).to(loading.dtype)
        return OLMoCausalLM(model.to(loading.device))
    from pipeline.models.huggingface import load_hugging_face

    files = checkpoint.files(loading.trust_remote_code)
    refuse_damaged(checkpoint.folder, [path.name for path in files])
    return load_hugging_face(checkpoint.folder, **vars(loading), num_positions=num_positions)
