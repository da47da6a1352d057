"""Which model a word of --checkpoints means, and loading it: the one place that knows both kinds."""

from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.errors import InputError
from pipeline.models.causal_lm import CausalLM
from pipeline.models.hub import is_hub_name, snapshot, weight_files
from pipeline.models.olmo import find_checkpoint, load_olmo, model_name, num_positions_of_olmo


@dataclass(frozen=True)
class Loading:
    """How models are loaded, whatever their kind."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    """Of weights and computation."""
    device_map: str | None = None
    """Hugging Face models only: as accelerate takes it, instead of `device`."""
    trust_remote_code: bool = False
    """Hugging Face models only: run the Python files that come with the model."""


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
            return [self.folder / "config.yaml", self.folder / "model.pt"]
        weights = weight_files(path.name for path in self.folder.iterdir())
        code = sorted(self.folder.glob("*.py")) if with_code else []
        return [self.folder / "config.json", *(self.folder / name for name in weights), *code]

    def fits(self, model: CausalLM, tokenizer_size: int) -> bool:
        """Whether its vocabulary is that of a tokenizer of `tokenizer_size` tokens, as far as sizes tell.

        OLMo's configuration states the vocabulary itself; a Hugging Face model's is that of its embedding,
        which is often padded to a round number.
        """
        if self.is_olmo:
            return tokenizer_size == model.vocabulary_size
        return tokenizer_size <= model.vocabulary_size

    def num_positions(self, trust_remote_code: bool = False) -> int | None:
        """How many positions the model was made for; None where its configuration does not say.

        RoPE can go beyond them, to what was not trained.

        Raises:
            InputError: the configuration cannot be used.
        """
        if self.is_olmo:
            return num_positions_of_olmo(self.folder)
        from pipeline.models.huggingface import num_positions_of  # late, as below

        return num_positions_of(self.folder, trust_remote_code)


def find_model(word: str, revision: str | None = None, trust_remote_code: bool = False) -> Checkpoint:
    """The model that `word` means: an OLMo run or checkpoint, a Hugging Face folder, or a name on the hub.

    A hub's model is downloaded here. A folder that exists wins over a name.

    Raises:
        InputError: there is none, or `revision` was asked of a folder, which has only what is in it.
    """
    path = Path(word)
    if not path.exists() and is_hub_name(word):
        name = word.rpartition("/")[2] + ("" if revision is None else f"-{revision.replace('/', '-')}")
        return Checkpoint(name, snapshot(word, revision, trust_remote_code), is_olmo=False)
    if revision is not None:
        raise InputError(f"--revision {revision} is of models on the Hugging Face hub; {word} is a folder")
    if (path / "config.json").is_file() and not (path / "model.pt").is_file():
        return Checkpoint(path.resolve().name, path, is_olmo=False)
    return Checkpoint(model_name(path), find_checkpoint(path), is_olmo=True)


def load_causal_lm(checkpoint: Checkpoint, loading: Loading, num_positions: int) -> CausalLM:
    """Load a model that was found.

    Args:
        num_positions: how many position IDs, from 0 on, will be used.

    Raises:
        InputError: it is broken, not a causal LM, or cannot take chosen position IDs.
    """
    if checkpoint.is_olmo:
        if loading.device_map is not None:
            raise InputError(f"--device-map is for Hugging Face models; {checkpoint.folder} is an OLMo")
        return load_olmo(checkpoint.folder, loading.device, loading.dtype, num_positions)
    # Here, not above: the library takes seconds to import, and those who measure OLMo do not need it.
    from pipeline.models.huggingface import load_hugging_face

    return load_hugging_face(
        checkpoint.folder,
        device=loading.device,
        dtype=loading.dtype,
        device_map=loading.device_map,
        trust_remote_code=loading.trust_remote_code,
        num_positions=num_positions,
    )
