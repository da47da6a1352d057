"""A download from the hub that stalls ends within seconds; the client would wait and ask anew for minutes.

Models on the Hugging Face hub: fetched once into its cache, then a folder like any other.

What a checkpoint's own configuration says of how it was trained; results carry it beside their numbers.

Which model a word of --checkpoints means, and loading it: the one place that knows both kinds.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from huggingface_hub import HfApi, constants, get_session, snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
from omegaconf import OmegaConf

from pipeline.cli import InputError
from pipeline.models.interface import CausalLM
from pipeline.models.olmo import find_checkpoint, load_olmo, model_name, num_positions_of_olmo
from pipeline.text.sources import HUB_PATIENCE_SECONDS, hub_answer

_LIMITS = ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT")
_LONGEST_PAUSE_SECONDS = 10
"""What the client waits at most before it asks again; asked later, it is another download."""
_heard: dict[str, float] = {}
"""Address of each answer that is awaited -> when it last brought something, by the monotonic clock."""


class StalledError(Exception):
    """The hub sent nothing for so long as the client waits. Of no kind that it asks again for."""


def end_where_it_stalls() -> None:
    """Have the hub's client of this process raise `StalledError` where it would ask for the same once more.

    Its limits, which begin anew with each piece that arrives, become `HUB_PATIENCE_SECONDS` unless the
    environment sets them.
    """
    for name in _LIMITS:
        if name not in os.environ:
            setattr(constants, name, HUB_PATIENCE_SECONDS)
    client = get_session()
    hooks = client.event_hooks
    if _refuse_repetition not in hooks["request"]:
        client.event_hooks = {
            "request": [*hooks["request"], _refuse_repetition], "response": [*hooks["response"], _listen],
        }  # fmt: skip


def _refuse_repetition(request: httpx.Request) -> None:
    address, now = _address(request), time.monotonic()
    silence = now - _heard.get(address, now)
    _heard[address] = now
    if HUB_PATIENCE_SECONDS <= silence < _patience() + _LONGEST_PAUSE_SECONDS:
        del _heard[address]
        raise StalledError(
            f"nothing came from {request.url.host} for {_patience():g} seconds; HF_HUB_DOWNLOAD_TIMEOUT and"
            " HF_HUB_ETAG_TIMEOUT set another limit"
        )


def _listen(response: httpx.Response) -> None:
    address = _address(response.request)
    _heard[address] = time.monotonic()
    assert isinstance(response.stream, httpx.SyncByteStream)
    response.stream = _Heard(response.stream, address)


def _patience() -> float:
    return max(getattr(constants, name) for name in _LIMITS)


def _address(request: httpx.Request) -> str:
    """Without what is signed anew for each request."""
    return f"{request.url.host}:{request.url.port}{request.url.path}"


class _Heard(httpx.SyncByteStream):
    """The bytes of an answer; when they came is written down."""

    def __init__(self, stream: httpx.SyncByteStream, address: str) -> None:
        self._stream, self._address = stream, address

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            _heard[self._address] = time.monotonic()
            yield piece
        _heard.pop(self._address, None)

    def close(self) -> None:
        """Give the connection back."""
        self._stream.close()


_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_name(text: str) -> bool:
    """Whether `text` may name a model on the hub: `name`, or `owner/name`."""
    return _NAME.fullmatch(text) is not None


def weight_files(names: Iterable[str]) -> list[str]:
    """The files among `names` that hold a model's weights, sorted: safetensors where there are any.

    Only those at the top of a folder and called as `save_pretrained` calls them: many repositories hold the
    same weights again in other formats.
    """
    names = sorted(names)
    safetensors = [name for name in names if re.fullmatch(r"model[^/]*\.safetensors", name)]
    return safetensors or [name for name in names if re.fullmatch(r"pytorch_model[^/]*\.bin", name)]


def snapshot(name: str, revision: str | None, with_code: bool, patience_seconds: float | None = None) -> Path:
    """The folder of the hub's model `name`, downloaded where it is not in the cache.

    Args:
        name: `owner/name`.
        revision: branch, tag or commit; the main branch where None.
        with_code: fetch its Python files too.
        patience_seconds: how long the hub may take to answer; None: as long as ever.

    Raises:
        InputError: there is no such model or revision, or the hub cannot be reached and the cache has none.
    """
    at = "" if revision is None else f" at revision {revision}"
    try:
        # Asked first, with a time limit: a download would retry for long where there is no network.
        found = hub_answer(lambda: HfApi().model_info(name, revision=revision), patience_seconds)
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise InputError(
            f"there is no folder {name} here, and no model {name}{at} on the Hugging Face hub that you may"
            f" read ({_first_line(error)})"
        ) from error
    except Exception as error:  # the hub's client raises its own, requests' or httpx' errors, by version
        cached = _cached(name, revision)
        if cached is None:
            raise InputError(
                f"there is no folder {name} here, and the Hugging Face hub cannot be reached"
                f" ({_first_line(error)}) nor is {name}{at} in its cache; name a folder that holds the model"
            ) from error
        return cached
    files = [file.rfilename for file in found.siblings or ()]
    wanted = weight_files(files)
    wanted += [file for file in files if "/" not in file and file.endswith(".json")]
    if with_code:
        wanted += [file for file in files if file.endswith(".py")]
    end_where_it_stalls()
    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=wanted, etag_timeout=constants.HF_HUB_ETAG_TIMEOUT
            )
        )
    except Exception as error:  # as above
        raise InputError(
            f"the download of {name}{at} broke off ({_first_line(error)}); run the same command again"
        ) from error


def _cached(name: str, revision: str | None) -> Path | None:
    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except FileNotFoundError:
        return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


FACTS = ("train_step", "train_context_length", "position_scheme", "seed")


def training_facts(folder: Path, is_olmo: bool) -> dict[str, Any]:
    """`FACTS` of a checkpoint; those that it does not tell, and all of a Hugging Face model's, are None.

    Args:
        folder: the checkpoint's, with its config.yaml where it is OLMo's.
        is_olmo: whether it is.

    Returns:
        train_step (of the folder's name step<N>-unsharded), train_context_length (tokens), position_scheme,
        seed.
    """
    if not is_olmo:
        return dict.fromkeys(FACTS)
    config = OmegaConf.load(folder / "config.yaml")
    step = re.fullmatch(r"step(\d+)(-unsharded)?", folder.resolve().name)
    length = OmegaConf.select(config, "train_context_length")
    if length is None:
        length = OmegaConf.select(config, "model.max_sequence_length")
    return {
        "train_step": int(step[1]) if step else None,
        "train_context_length": length,
        "position_scheme": OmegaConf.select(config, "position_scheme"),
        "seed": OmegaConf.select(config, "seed"),
    }


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
