"""A model and its tokenizer as a user has them: a path, a name on the hub, or objects in memory."""

import copy
import os
import sys
from collections.abc import Iterable, Sequence
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
from pipeline.text.tokenizer import (
    DocumentTokenizer,
    load_tokenizer,
    parse_tokenizer_name,
    tokenizer_at,
)


def _is_olmo(model: Any) -> bool:
    """Whether this is a model of ai2-olmo, which need not be installed."""
    # Whoever holds an OLMo has imported its module.
    return "olmo.model" in sys.modules and isinstance(model, sys.modules["olmo.model"].OLMo)


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
        trust_remote_code: bool = False,
    ) -> None:
        if dtype not in DTYPES:
            raise unknown_name("dtype", dtype, DTYPES)
        self._loading = Loading(
            usable_device(device), getattr(torch, dtype), trust_remote_code=trust_remote_code
        )
        self._model: Any = model
        self._origin: Checkpoint | None = None
        self._checkpoint: Checkpoint | None = None
        if isinstance(model, str | Path):
            self._checkpoint = find_model(str(model), trust_remote_code)
            self._origin = self._checkpoint
            self.name = self._checkpoint.name
            self.num_positions = self._checkpoint.num_positions(trust_remote_code)
        elif _is_olmo(model):
            self.name = "OLMo"
            self.num_positions = model.config.max_sequence_length
        else:
            # Here, not above: the library takes seconds to import, and those who measure OLMo do without it.
            from transformers import PreTrainedModel

            from pipeline.models.huggingface import positions_of

            if not isinstance(model, PreTrainedModel):
                raise InputError(
                    f"the model is of type {type(model).__name__}; give a path, a name on the hub, or a"
                    " causal LM of transformers or ai2-olmo"
                )
            self.name = Path(model.name_or_path).name or type(model).__name__
            self.num_positions = positions_of(model)
            folder = Path(model.name_or_path or os.devnull)
            if tokenizer_at(folder):
                self._origin = Checkpoint(self.name, folder, is_olmo=False)

    def tokenizer(
        self, given: Any = None, *, bos: str = "auto", special_tokens: bool = False
    ) -> DocumentTokenizer:
        """The tokenizer that is given, or the model's own.

        InputError if there is none, or one that does not say where its tokens stand.
        """
        if given is not None and not isinstance(given, str | Path):
            return load_tokenizer(given, bos=bos, special_tokens=special_tokens)
        if given is None and self._checkpoint is None:
            raise InputError("a model in memory comes without its tokenizer: give it too, as tokenizer=…")
        path = (
            self._origin and self._origin.own_tokenizer if given is None else parse_tokenizer_name(str(given))
        )
        if not isinstance(path, Path):
            raise InputError(f"{given or self.name} is no tokenizer; name a tokenizer.json with --tokenizer")
        return load_tokenizer(
            path,
            bos=bos,
            special_tokens=special_tokens,
            trust_remote_code=self._loading.trust_remote_code,
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
        model = self._measurable(num_positions_of(num_tokens, len(bos_token_ids)))
        refuse_foreign_tokens(
            model,
            self.name,
            self._origin,
            [np.array(bos_token_ids, dtype=np.int64), *texts],
            tokenizer,
            tokenizer.name,
            tokenizer.vocabulary_size,
            trust_remote_code=self._loading.trust_remote_code,
        )
        model = model.led_by(bos_token_ids)
        return LoadedModel(self.name, model, Batching.for_model(model))

    def _measurable(self, num_positions: int) -> CausalLM:
        if self._checkpoint is not None:
            return load_causal_lm(self._checkpoint, self._loading, num_positions)
        # Measuring changes modules and configuration: of a copy, whose weights are the user's.
        shared: dict[int, Any] = {id(buffer): buffer for buffer in self._model.buffers()}
        for weight in self._model.parameters():
            # deepcopy takes what its memo lists as copied already. A trainable weight gets a new Parameter
            # over the same storage: CausalLM clears requires_grad, and the user's own must keep it.
            shared[id(weight)] = copy.copy(weight) if weight.requires_grad else weight
        model = copy.deepcopy(self._model, shared)
        if _is_olmo(model):
            from pipeline.models.olmo import OLMoCausalLM

            return OLMoCausalLM(model, num_positions)
        from pipeline.models.huggingface import as_causal_lm  # late, as above

        return as_causal_lm(model, self.name, num_positions)
