"""How a model is loaded: the same flags and arguments of every program and function that measures."""

from dataclasses import dataclass
from typing import Any

from sparsity_length.models.rope import RopeScaling, Stair
from sparsity_length.settings import Settings, setting, switch


def _dtype(value: Any) -> str:
    return str(value).removeprefix("torch.")


@dataclass(frozen=True, kw_only=True)
class Loading(Settings):
    """How models are loaded."""

    dtype: str = setting(
        _dtype,
        "precision of weights and computation; bfloat16 may select other, about equally influential tokens",
        "float32",
        choices=("float32", "bfloat16"),
    )
    device: str | None = setting(
        str,
        "torch device; under torchrun or `accelerate launch`, cuda is each process's own GPU (default: cuda"
        " if there is a GPU, else cpu)",
        None,
    )
    device_map: str | None = setting(
        str, "for Hugging Face models, instead of --device: auto spreads the layers over all devices", None
    )
    rope: RopeScaling | Stair | None = setting(
        RopeScaling.parse,
        "change the RoPE of a Hugging Face model when loading it: yarn:2 scales it (YaRN), stair:512:50 lets"
        " 50 tokens share a position ID beyond the last 512 (default: as trained)",
        None,
        metavar="KIND:FACTOR",
    )
    trust_remote_code: bool = switch(
        "run the Python files that come with a Hugging Face model (default: never)"
    )
