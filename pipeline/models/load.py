"""Which model a word of --checkpoints means, and loading it: a folder, or a name on the hub.

<run folder>/step<N>-unsharded/       a checkpoint in OLMo's layout, as pipeline/pretrain.py writes them
    config.yaml  model.pt             what a model is loaded from
    optim.pt  train.pt                what a run goes on from, too
    complete.json                     {"files": {"model.pt": {"bytes": 1234, "sha256": "…"}, …}}, written last

A Hugging Face folder that this project exported has such a mark, too. What a mark names is compared with it
whenever a model is loaded. A model of the hub is fetched once into its cache, then a folder like any other.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import snapshot_download
from omegaconf import OmegaConf

from pipeline.cli import InputError, cause_of, is_out_of_memory, logger
from pipeline.models.interface import CausalLM, refuse_other_weights
from pipeline.models.vocabulary import OwnTokenizer
from pipeline.results.files import damages, describe_files, read_record, write_json
from pipeline.text.tokenizer import tokenizer_at

if TYPE_CHECKING:
    from olmo.model import OLMo

    from pipeline.models.olmo import OLMoCausalLM

MARK_FILE = "complete.json"
MODEL_FILES = ("config.yaml", "model.pt")
RUN_FILES = (*MODEL_FILES, "optim.pt", "train.pt")
FACTS = ("train_step", "train_context_length", "position_scheme", "seed")
_HINT = "put back the file that was saved, or take another checkpoint"


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


def damage_of(folder: Path, names: Sequence[str]) -> str | None:
    """What is wrong with the files that a model's folder must have, as a phrase; None if nothing shows.

    Their sizes and SHA-256 are compared with the mark. Another program's folder has none.
    """
    if missing := [name for name in names if not (folder / name).is_file()]:
        return f"{folder / missing[0]} is missing"
    record = read_record(folder / MARK_FILE) or {"files": {}}
    return next(damages(folder, {name: of for name, of in record["files"].items() if name in names}), None)


def refuse_damaged(folder: Path, names: Sequence[str]) -> None:
    """Refuse a model one of whose files is damaged, by size and content, in an InputError that names it."""
    if damage := damage_of(folder, names):
        raise InputError(f"the checkpoint {folder} is damaged: {damage}; {_HINT}")


def newest_whole(run_folder: Path) -> tuple[int, Path] | None:
    """Step and folder of the newest checkpoint that a run can go on from; every file of it is read.

    None if the run has no checkpoint; InputError if all are damaged.
    """
    passed_over: list[str] = []
    for step, folder in reversed(step_folders(run_folder).items()):
        damage = damage_of(folder, RUN_FILES)
        if damage is None:
            for found in passed_over:
                logger.warning("passed over a damaged checkpoint, %s; going on from step %d", found, step)
            return step, folder
        passed_over.append(damage)
    if passed_over:
        raise InputError(
            f"no checkpoint of {run_folder} is whole ({'; '.join(passed_over)}); put back what was saved, or"
            " remove them to begin anew"
        )
    return None


def _holds_olmo(folder: Path) -> bool:
    return all((folder / name).is_file() for name in MODEL_FILES)


def read_tensors(path: Path, *, is_mapped: bool = False) -> dict[str, Any]:
    """Named tensors and plain values of a file of `torch.save`, on the CPU; never code, else an InputError.

    Mapped, they stay in the file, and take no memory: for tensors that are copied at once.
    """
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped))
    except Exception as error:  # a damaged archive or pickle fails in as many ways as there are bytes
        if is_out_of_memory(error):
            raise
        raise InputError(
            f"{path} is damaged, or was not written by torch.save as tensors ({cause_of(error)}); {_HINT}"
        ) from error


def find_checkpoint(path: Path) -> Path:
    """The checkpoint folder that `path` means: itself, or the latest `step<N>-unsharded` of a run folder.

    A damaged one is not passed over: the step before it would be another result under the same name.
    """
    folders = [path] if _holds_olmo(path) else [*step_folders(path).values()]
    if not folders:
        what = f"no model at {path}" if path.exists() else f"there is no file or folder {path}"
        raise InputError(
            f"{what}: name a folder with a Hugging Face model's config.json and model.safetensors, or OLMo's"
            " config.yaml and model.pt, there or in a folder step<N>-unsharded below it; or a model of the"
            " Hugging Face hub as owner/name"
        )
    return folders[-1]


def load_olmo(
    checkpoint: Path,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    num_positions: int | None = None,
) -> "OLMoCausalLM":
    """Load an unsharded OLMo checkpoint to be measured."""
    from pipeline.models.olmo import OLMoCausalLM  # late: ai2-olmo need not be installed

    model = load_stock_olmo(checkpoint).to(dtype)
    return OLMoCausalLM(model.to(device), num_positions)


def _configuration(checkpoint: Path) -> Any:
    """What an OLMo checkpoint's config.yaml says; InputError where it cannot be read."""
    path = checkpoint / "config.yaml"
    try:
        return OmegaConf.load(path)
    except Exception as error:  # YAML's, OmegaConf's or Python's
        raise InputError(f"{path} is not an OLMo configuration: {cause_of(error)}") from error


def load_stock_olmo(checkpoint: Path) -> "OLMo":
    """Load an unsharded OLMo checkpoint on the CPU, its attention scaled as in training.

    InputError where the folder is no OLMo checkpoint, is damaged, or has no RoPE.
    """
    # late, as above
    from olmo.config import BlockType, ModelConfig
    from olmo.model import OLMo

    from pipeline.models.olmo import ATTENTION_SCALINGS, scale_attention

    refuse_damaged(checkpoint, MODEL_FILES)
    # A checkpoint that says nothing of it was trained without.
    scaling = OmegaConf.select(_configuration(checkpoint), "attention_scaling") or "none"
    path = checkpoint / "config.yaml"
    try:
        config = ModelConfig.load(path, key="model", validate_paths=False)
    except Exception as error:  # OLMo's, OmegaConf's or Python's
        raise InputError(f"{path} is not an OLMo configuration: {cause_of(error)}") from error
    if config.block_type != BlockType.sequential or not config.rope or scaling not in ATTENTION_SCALINGS:
        raise InputError(
            f"{checkpoint} cannot be measured: it needs model.rope true, model.block_type sequential, and an"
            f" attention_scaling of {', '.join(ATTENTION_SCALINGS)}"
        )
    config.init_device = "cpu"
    path = checkpoint / "model.pt"
    weights = read_tensors(path, is_mapped=True)
    model = OLMo(config, init_params=False)
    scale_attention(model, scaling, training_facts(checkpoint, is_olmo=True)["train_context_length"])
    try:
        weights = model._make_state_dict_compatible(weights)[0]
        found = model.load_state_dict(weights, strict=False)
    except (RuntimeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is not the weights of its config.yaml: {cause_of(error)}") from error
    refuse_other_weights(path, "its config.yaml", found.unexpected_keys, found.missing_keys)
    return model


def weight_files(names: Iterable[str]) -> list[str]:
    """The files among `names` that hold a model's weights, sorted: safetensors where there are any.

    Called as `save_pretrained` calls them: many repositories hold the same weights in other formats, too.
    """
    names = sorted(names)
    safetensors = [name for name in names if re.fullmatch(r"model[^/]*\.safetensors", name)]
    return safetensors or [name for name in names if re.fullmatch(r"pytorch_model[^/]*\.bin", name)]


def snapshot(name: str, revision: str | None, with_code: bool) -> Path:
    """The folder of the hub's model `name`, at a branch, tag or commit; downloaded unless it is cached."""
    wanted = ["*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt", *(["*.py"] if with_code else [])]
    at: dict[str, Any] = {"revision": revision, "ignore_patterns": "*/*"}
    try:
        folder = Path(snapshot_download(name, **at, allow_patterns=[*wanted, "model*.safetensors"]))
        if not weight_files(path.name for path in folder.iterdir()):
            snapshot_download(name, **at, allow_patterns="pytorch_model*.bin")
    except Exception as error:  # the hub's client raises its own, requests' or httpx' errors, by version
        of_revision = "" if revision is None else f" at revision {revision}"
        raise InputError(
            f"there is no folder {name}, and {name}{of_revision} is not in the cache and cannot be fetched"
            f" from the Hugging Face hub ({cause_of(error)})"
        ) from error
    return folder


def training_facts(folder: Path, is_olmo: bool) -> dict[str, Any]:
    """What an OLMo checkpoint's name and configuration say of its training: `FACTS`, None where unknown."""
    if not is_olmo:
        return dict.fromkeys(FACTS)
    config = _configuration(folder)
    step = re.fullmatch(r"step(\d+)(-unsharded)?", folder.resolve().name)
    facts = {name: OmegaConf.select(config, name) for name in FACTS}
    facts["train_context_length"] = OmegaConf.select(config, "train_context_length") or OmegaConf.select(
        config, "model.max_sequence_length"
    )
    return facts | {"train_step": int(step[1]) if step else None}


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
        weights = weight_files(path.name for path in self.folder.iterdir())
        code = sorted(self.folder.glob("*.py")) if with_code else []
        return [self.folder / "config.json", *(self.folder / name for name in weights), *code]

    def own_tokenizer(self, trust_remote_code: bool = False) -> OwnTokenizer:
        """The tokenizer that lies by it; by a run of pretrain.py in its data folder, named as studies do."""
        folder = self.folder.resolve()
        places = [folder]
        if self.is_olmo:
            places += [folder.parent, *(above / "data" for above in list(folder.parents)[:3])]
        path = next(filter(None, map(tokenizer_at, places)), None)
        return OwnTokenizer(path, self.is_olmo, trust_remote_code)

    def num_positions(self, trust_remote_code: bool = False) -> int | None:
        """How many positions the model was made for (RoPE can go beyond); None where that is not said."""
        if self.is_olmo:
            config = _configuration(self.folder)
            num_positions: int | None = OmegaConf.select(config, "model.max_sequence_length")
            return num_positions
        from pipeline.models.huggingface import config_of, positions_of  # late, as below

        return positions_of(config_of(self.folder, trust_remote_code))


_ON_HUB = r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([\w.-]+))?"
"""NAME or OWNER/NAME, and what may stand behind @."""


def name_of(word: str, revision: str | None = None) -> str:
    """The name that results of the model `word` are filed under; nothing is downloaded.

    It is the run folder's, with the step if one was asked for.
    """
    path = Path(word).resolve() if Path(word).exists() else Path(word)
    name = path.name
    if path.exists() and (step := re.fullmatch(r"(step\d+)-unsharded", name)):
        name = f"{path.parent.name}-{step[1]}"
    return "-".join(filter(None, [name, revision])).replace("@", "-").replace("/", "-")


def find_model(word: str, revision: str | None = None, trust_remote_code: bool = False) -> Checkpoint:
    """The model that `word` means: an OLMo run or checkpoint, a Hugging Face folder, or a name on the hub.

    The hub's is NAME or NAME@REVISION, and downloaded here. A folder that exists wins over a name. InputError
    if there is no model, with the next step.
    """
    path = Path(word)
    name = name_of(word)
    on_hub = re.fullmatch(_ON_HUB, word)
    if on_hub and not path.exists():
        revision = on_hub[2] or revision
        name = name_of(on_hub[1], revision)
        path = snapshot(on_hub[1], revision, trust_remote_code)
    elif revision is not None:
        raise InputError(f"--revision {revision} is of models on the Hugging Face hub; {word} is none")
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
    files = checkpoint.files(loading.trust_remote_code)
    if checkpoint.is_olmo:
        return load_olmo(checkpoint.folder, loading.device, loading.dtype, num_positions)
    if (checkpoint.folder / MARK_FILE).exists():
        refuse_damaged(checkpoint.folder, [path.name for path in files])
    # Here, not above: the library takes seconds to import, and those who measure OLMo do not need it.
    from pipeline.models.huggingface import load_hugging_face

    return load_hugging_face(checkpoint.folder, **vars(loading), num_positions=num_positions)
