"""Reading a Hugging Face model from its folder, and saying in a sentence why that cannot be done."""

import inspect
from pathlib import Path
from typing import Any

import torch
import transformers

from pipeline.errors import InputError


def hugging_face_config(folder: Path, trust_remote_code: bool) -> Any:
    """The folder's configuration.

    Raises:
        InputError: it cannot be used.
    """
    try:
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (
        Exception
    ) as error:  # by version and fault OSError, ValueError, KeyError, or what remote code raises
        raise InputError(f"{folder}/config.json cannot be used: {_reason(error)}") from error


def stock_hugging_face(
    folder: Path, dtype: torch.dtype, device_map: str | None, trust_remote_code: bool
) -> transformers.PreTrainedModel:
    """The causal LM in the folder, as the library has it.

    Raises:
        InputError: it is none, lacks weights, or takes no position IDs.
    """
    try:
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    except Exception as error:  # the library's, safetensors', pickle's, accelerate's or remote code's own
        raise InputError(f"{folder} cannot be loaded as a causal LM: {_reason(error)}") from error
    if missing := sorted(loading["missing_keys"]):
        # The library would go on with random numbers in their place.
        raise InputError(
            f"{folder} lacks {len(missing)} of the weights of a {type(model).__name__}, such as {missing[0]};"
            " it was saved without them, or is not a causal LM"
        )
    if "position_ids" not in _trunk_arguments(model):
        raise InputError(
            f"{type(model).__name__} in {folder} takes no position IDs, so tokens cannot keep theirs when"
            " others are left out"
        )
    return model


def _reason(error: Exception) -> str:
    """The first line of the library's message, which may be pages long."""
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if "trust_remote_code" in str(error):
        reason = "it needs the Python files that come with it; where you trust them, --trust-remote-code"
    return reason[:300]


def _trunk_arguments(model: transformers.PreTrainedModel) -> set[str]:
    forward = inspect.signature(model.base_model.forward)
    return set(forward.parameters)
