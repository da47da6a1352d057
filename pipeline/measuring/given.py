"""A model and its tokenizer as a user has them: a path, a name on the hub, or objects in memory."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.cli import InputError, unknown_name
from pipeline.measuring.contexts import Batching
from pipeline.measuring.flags import DTYPES
from pipeline.measuring.stage import AUTO, LoadedModel
from pipeline.models.devices import keep_freed_memory, usable_device
from pipeline.models.interface import CausalLM, num_positions_of
from pipeline.models.load import Loading, find_model, load_causal_lm
from pipeline.models.vocabulary import OwnTokenizer, refuse_foreign_tokens
from pipeline.text.tokenizer import (
    DocumentTokenizer,
    load_tokenizer,
    parse_tokenizer_name,
    tokenizer_at,
    tokenizer_in_memory,
)


def _is_olmo(model: Any) -> bool:
    """Whether this is a model of ai2-olmo, which need not be installed."""
    return "olmo.model" in sys.modules and isinstance(model, sys.modules["olmo.model"].OLMo)


class GivenModel:
    """A model that has been found, or lies in memory, and is not yet ready; InputError if there is none.

    One in memory is measured as it is, whatever device and dtype are asked for.
    """

    def __init__(
        self, model: Any, *, device: str | None = None, dtype: str = AUTO, revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:  # fmt: skip
        if dtype not in DTYPES:
            raise unknown_name("dtype", dtype, DTYPES)
        self._device = device
        self._dtype = dtype
        self._trusts_code = trust_remote_code
        self._in_memory: nn.Module | None = None
        if isinstance(model, str | Path):
            self._checkpoint = find_model(str(model), revision, trust_remote_code)
            self.name = self._checkpoint.name
            self.num_positions = self._checkpoint.num_positions(trust_remote_code)
            return
        self._in_memory = model
        if _is_olmo(model):
            self.name, self.num_positions = "OLMo", model.config.max_sequence_length
            return
        # Here, not above: the library takes seconds to import, and those who measure OLMo do not need it.
        from transformers import PreTrainedModel

        from pipeline.models.huggingface import positions_of

        if not isinstance(model, PreTrainedModel):
            raise InputError(
                f"the model is of type {type(model).__name__}; give a path, a name on the hub, or a causal LM"
                " of transformers or ai2-olmo"
            )
        self.name = Path(model.name_or_path).name or type(model).__name__
        self.num_positions = positions_of(model.config)

    def tokenizer(
        self, given: Any = None, *, bos: str = "auto", special_tokens: bool = False
    ) -> DocumentTokenizer:
        """The tokenizer that is given, or the model's own.

        InputError if there is none, or one that does not say where its tokens stand.
        """
        if given is not None and not isinstance(given, str | Path):
            return tokenizer_in_memory(given, bos=bos, special_tokens=special_tokens)
        path: Path | int | None
        if given is not None:
            path = parse_tokenizer_name(str(given))
        elif self._in_memory is not None:
            raise InputError("a model in memory comes without its tokenizer: give it too, as tokenizer=…")
        else:
            path = self._checkpoint.own_tokenizer().path
        if not isinstance(path, Path):
            raise InputError(f"{given or self.name} is no tokenizer; name a tokenizer.json with --tokenizer")
        return load_tokenizer(
            path, bos=bos, special_tokens=special_tokens, trust_remote_code=self._trusts_code
        )

    def _own_tokenizer(self) -> OwnTokenizer | None:
        """The tokenizer that the model was trained with; None if it is in memory without a folder."""
        if self._in_memory is None:
            return self._checkpoint.own_tokenizer(self._trusts_code)
        path = tokenizer_at(Path(getattr(self._in_memory, "name_or_path", "") or os.devnull))
        return None if path is None else OwnTokenizer(path)

    @contextmanager
    def ready(
        self, num_tokens: int, texts: Iterable[np.ndarray], tokenizer: DocumentTokenizer,
        bos_token_ids: Sequence[int] = (),
    ) -> Iterator[LoadedModel]:  # fmt: skip
        """The model to be measured on chunks of `num_tokens`, BOS before all that it reads.

        One in memory is as it was afterwards. `texts` are token IDs, of the `tokenizer`. InputError if the
        model cannot be measured, or was not trained on such tokens (`refuse_foreign_tokens`).
        """
        keep_freed_memory()
        with nullcontext() if self._in_memory is None else _given_back(self._in_memory):
            model = self._measurable(num_positions_of(num_tokens, len(bos_token_ids)))
            refuse_foreign_tokens(
                model, self.name, self._own_tokenizer(),
                [np.array(bos_token_ids, dtype=np.int64), *texts], tokenizer, tokenizer.name,
                tokenizer.vocabulary_size,
            )  # fmt: skip
            model = model.led_by(bos_token_ids)
            yield LoadedModel(self.name, model, Batching.for_model(model))

    def _measurable(self, num_positions: int) -> CausalLM:
        if _is_olmo(self._in_memory):
            from pipeline.models.olmo import OLMoCausalLM

            return OLMoCausalLM(self._in_memory, num_positions)
        if self._in_memory is not None:
            from pipeline.models.huggingface import as_causal_lm  # late, as above

            return as_causal_lm(self._in_memory, self.name, num_positions)
        # Not what is faster: in bfloat16 many first choices would be others.
        dtype = torch.float32 if self._dtype == AUTO else getattr(torch, self._dtype)
        loading = Loading(usable_device(self._device), dtype, trust_remote_code=self._trusts_code)
        return load_causal_lm(self._checkpoint, loading, num_positions)


@contextmanager
def _given_back(model: nn.Module) -> Iterator[None]:
    """Restore afterwards whatever measuring changes of a user's model."""
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    config: Any = model.config
    attention = getattr(config, "_attn_implementation", None)
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training
        for parameter, has_gradient in gradients:
            parameter.requires_grad_(has_gradient)
        if attention is not None and attention != config._attn_implementation:
            model.set_attn_implementation(attention)  # type: ignore[operator]
