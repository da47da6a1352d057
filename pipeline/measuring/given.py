"""A model and its tokenizer as a user has them: a path, a name on the hub, or objects in memory."""

import copy
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.cli import InputError, unknown_name
from pipeline.measuring.contexts import Batching
from pipeline.measuring.flags import DTYPES
from pipeline.measuring.stage import LoadedModel
from pipeline.models.devices import keep_freed_memory, usable_device
from pipeline.models.interface import CausalLM, num_positions_of
from pipeline.models.load import Checkpoint, Loading, find_model, load_causal_lm
from pipeline.models.vocabulary import refuse_foreign_tokens
from pipeline.text.tokenizer import DocumentTokenizer, load_tokenizer, parse_tokenizer_name, tokenizer_at


def refuse_below_one(**numbers: int | None) -> None:
    """Refuse numbers below 1; None stands for a default."""
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise InputError(f"{name} is {number}; give a whole number of at least 1")


def _is_of(library: str, kind: str, model: Any) -> bool:
    """Whether a model is of a library's class; nothing is imported."""
    # Whoever holds a model has imported its library, which need not be installed, or takes seconds.
    return library in sys.modules and isinstance(model, getattr(sys.modules[library], kind))


def _sharing_copy(model: Any) -> Any:
    """A copy whose weights are the user's; measuring changes modules and configuration."""
    tensors = [*model.parameters(), *model.buffers()]
    # deepcopy takes what its memo lists as copied already. A trainable weight gets a new Parameter over the
    # same storage: CausalLM clears requires_grad, and the user's own must keep it.
    shared = {id(tensor): copy.copy(tensor) if tensor.requires_grad else tensor for tensor in tensors}
    return copy.deepcopy(model, shared)


class GivenModel:
    """A model that has been found, or lies in memory, and is not yet ready; InputError if there is none.

    One in memory stays as it is, and is measured on its device and in its dtype, whatever is asked for.
    """

    def __init__(
        self,
        model: Any,
        *,
        device: str | None = None,
        dtype: str = "float32",
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        if dtype not in DTYPES:
            raise unknown_name("dtype", dtype, DTYPES)
        self._trust_remote_code = trust_remote_code
        self._checkpoint: Checkpoint | None = None
        """Where its own tokenizer lies, if that is known."""
        self._load: Callable[[int], CausalLM]
        """Makes it ready for so many position IDs."""
        # Imported here, not above: transformers takes seconds, and ai2-olmo need not be installed.
        if isinstance(model, str | Path):
            self._checkpoint = find_model(str(model), revision, trust_remote_code)
            loading = Loading(
                usable_device(device), getattr(torch, dtype), trust_remote_code=trust_remote_code
            )
            self._load = partial(load_causal_lm, self._checkpoint, loading)
            self.name = self._checkpoint.name
            self.num_positions = self._checkpoint.num_positions(trust_remote_code)
        elif _is_of("olmo.model", "OLMo", model):
            from pipeline.models.olmo import OLMoCausalLM

            self._load = partial(OLMoCausalLM, _sharing_copy(model))
            self.name = "OLMo"
            self.num_positions = model.config.max_sequence_length
        elif _is_of("transformers", "PreTrainedModel", model):
            from pipeline.models.huggingface import as_causal_lm, positions_of

            self.name = Path(model.name_or_path).name or type(model).__name__
            self._load = partial(as_causal_lm, _sharing_copy(model), self.name)
            self.num_positions = positions_of(model)
            if model.name_or_path and tokenizer_at(Path(model.name_or_path)):
                self._checkpoint = Checkpoint(self.name, Path(model.name_or_path), is_olmo=False)
        else:
            raise InputError(
                f"the model is of type {type(model).__name__}; give a path, a name on the hub, or a causal LM"
                " of transformers or ai2-olmo"
            )

    def tokenizer(
        self, given: Any = None, *, bos: str = "auto", special_tokens: bool = False
    ) -> DocumentTokenizer:
        """The tokenizer that is given, or the model's own.

        InputError if there is none, or one that does not say where its tokens stand.
        """
        if given is None and self._checkpoint is not None:
            given = self._checkpoint.own_tokenizer
        if given is None:
            raise InputError(f"{self.name} comes without its tokenizer: give it too, as --tokenizer")
        if isinstance(given, str):
            given = parse_tokenizer_name(given)
        return load_tokenizer(
            given, bos=bos, special_tokens=special_tokens, trust_remote_code=self._trust_remote_code
        )

    def ready(
        self,
        num_tokens: int,
        texts: Iterable[np.ndarray],
        tokenizer: DocumentTokenizer,
        bos_token_ids: Sequence[int] = (),
    ) -> LoadedModel:
        """The model to be measured on chunks of `num_tokens`, BOS before all that it reads.

        `texts` are token IDs, of the `tokenizer`. InputError if the model cannot be measured, or was not
        trained on such tokens (`refuse_foreign_tokens`).
        """
        keep_freed_memory()
        model = self._load(num_positions_of(num_tokens, len(bos_token_ids)))
        refuse_foreign_tokens(
            model,
            self.name,
            self._checkpoint,
            [np.array(bos_token_ids, dtype=np.int64), *texts],
            tokenizer,
            tokenizer.name,
            tokenizer.vocabulary_size,
            trust_remote_code=self._trust_remote_code,
        )
        led = model.led_by(bos_token_ids)
        return LoadedModel(self.name, led, Batching.for_model(led))
