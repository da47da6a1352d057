"""A model and its tokenizer as a user has them: a path, a name on the hub, or objects in memory.

Whether tokens and model belong together is one check, of the programs, explain, the library and evaluators:

    known of the model   refused
    its own tokenizer    a tokenizer that reads a text as other tokens (`DocumentTokenizer.reads_as`)
                         or puts a BOS before it that the model's own does not; the reverse is a warning, for
                         it may be meant (--bos none)
    only its size        a tokenizer of T tokens, if the model has more than T + max(512, T / 20) rows: fewer
                         pad its embedding; if the model was found by its path, with a warning
    in any case          a token that a text has and that the model has no row for

A tokenizer may be larger than the model if no text uses the rest.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from sparsity_length.cli import InputError, logger
from sparsity_length.models.devices import keep_freed_memory
from sparsity_length.models.interface import CausalLM
from sparsity_length.models.load import Checkpoint, find_model, load_causal_lm
from sparsity_length.models.settings import Loading
from sparsity_length.text.tokenizer import (
    DocumentTokenizer,
    load_tokenizer,
    parse_tokenizer_name,
    tokenizer_at,
)

LONG_CONTEXT_LENGTH = 1024
"""The default, if the model has as many positions."""


def num_positions_of(num_tokens: int, num_leading: int) -> int:
    """How many position IDs a chunk takes behind leading tokens.

    Its last token is predicted and never read, which makes room for one of these.
    """
    # Eight tokens behind one BOS: seven are read, at IDs 1 to 7, and BOS at 0: eight IDs.
    return num_tokens + max(0, num_leading - 1)


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

    def __init__(self, model: Any, loading: Loading = Loading()) -> None:  # noqa: B008 (immutable)
        self._trust_remote_code = trust_remote_code = loading.trust_remote_code
        self._own_tokenizer: Path | None = None
        """Where that lies, if it is known."""
        if isinstance(model, str | Path):
            model = find_model(str(model), trust_remote_code)
        # By name: ai2-olmo need not be installed, and transformers takes seconds to import.
        kinds = {kind.__name__ for kind in type(model).__mro__}
        if isinstance(model, Checkpoint):
            self._load: Callable[[int], CausalLM] = partial(load_causal_lm, model, loading)
            """Makes it ready for so many position IDs."""
            self.name = model.name if loading.rope is None else f"{model.name} ({loading.rope})"
            self.num_positions = model.num_positions(trust_remote_code)
            self._own_tokenizer = model.own_tokenizer
            if self._own_tokenizer is None:
                logger.warning("the tokenizer of model %s is unknown, and not compared", self.name)
        elif loading.rope is not None:
            raise InputError("rope changes a model that is loaded here: give a folder, or a name on the hub")
        elif "OLMo" in kinds:
            from sparsity_length.models.olmo import OLMoCausalLM

            stock = _sharing_copy(model)
            self._load = lambda num_positions: OLMoCausalLM(stock)  # any ID may be used
            self.name = "OLMo"
            self.num_positions = model.config.max_sequence_length
        elif "PreTrainedModel" in kinds:
            from sparsity_length.models.huggingface import as_causal_lm, position_limit

            self.name = Path(model.name_or_path).name or type(model).__name__
            self._load = partial(as_causal_lm, _sharing_copy(model), self.name)
            self.num_positions = position_limit(model.config, has_rotary_embedding=False)
            if model.name_or_path:
                self._own_tokenizer = tokenizer_at(Path(model.name_or_path))
        else:
            raise InputError(
                f"the model is of type {type(model).__name__}; give a path, a name on the hub, or a causal LM"
                " of transformers or ai2-olmo"
            )
        # Several texts of one length are read by one model.
        self._load = cache(self._load)

    @cached_property
    def _own(self) -> DocumentTokenizer:
        """The model's own tokenizer, loaded once: that takes a second or two."""
        return load_tokenizer(self._own_tokenizer, trust_remote_code=self._trust_remote_code)

    def tokenizer(
        self, given: Any = None, *, bos: str = "auto", special_tokens: bool = False
    ) -> DocumentTokenizer:
        """The tokenizer that is given, or the model's own.

        InputError if there is none, or one that does not say where its tokens stand.
        """
        given = self._own_tokenizer if given is None else given
        if given is None:
            raise InputError(
                f"{self.name} comes without its tokenizer: give it too, as tokenizer=… or --tokenizer"
            )
        if given is self._own_tokenizer and (bos, special_tokens) == ("auto", False):
            return self._own
        if isinstance(given, str):
            given = parse_tokenizer_name(given)
        return load_tokenizer(
            given, bos=bos, special_tokens=special_tokens, trust_remote_code=self._trust_remote_code
        )

    def default_length(self, bos_token_ids: Sequence[int], least: int = 0) -> int:
        """Tokens of a chunk behind BOS by default: 1,024, or `least`, as far as the model's positions go."""
        wanted = max(LONG_CONTEXT_LENGTH, least)
        if self.num_positions is None:
            return wanted
        return min(wanted, self.num_positions - num_positions_of(0, len(bos_token_ids)))

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
        num_positions = num_positions_of(num_tokens, len(bos_token_ids))
        model = self._load(num_positions)
        if self.num_positions is not None and num_positions > self.num_positions:
            logger.warning(
                "%s was made for %d positions, and reads %d", self.name, self.num_positions, num_positions
            )
        refuse_foreign_tokens(
            model.vocabulary_size,
            self.name,
            self._own if self._own_tokenizer else None,
            [np.array(bos_token_ids, dtype=np.int64), *texts],
            tokenizer,
        )
        return model.led_by(bos_token_ids)


def refuse_foreign_tokens(
    num_rows: int,
    name: str,
    own: DocumentTokenizer | None,
    texts: Iterable[np.ndarray],
    tokenizer: DocumentTokenizer,
) -> None:
    """Refuse a model that was not trained on the tokens of these texts; see the table above.

    Args:
        num_rows: of the model's embedding.
        name: what messages call the model.
        own: the model's tokenizer, if that is known.
        texts: integers, a token ID each.
        tokenizer: made the tokens.
    """
    # Within each text first: what is then joined is at most a vocabulary per text.
    of_texts = [np.unique(token_ids).astype(np.int64) for token_ids in texts]
    used = np.unique(np.concatenate(of_texts)).tolist()
    largest = max(used, default=0)
    size = tokenizer.vocabulary_size
    remedy = "they do not belong together; read the text with the model's own tokenizer"
    # The other direction is no sign: a tokenizer may have tokens that no text uses.
    if largest >= num_rows or (own is None and num_rows > size + max(512, size / 20)):
        raise InputError(
            f"{tokenizer.name} has {size} tokens (largest ID used: {largest}) and {name} a vocabulary of"
            f" {num_rows}: {remedy}"
        )
    if own is None:
        return
    bos = tokenizer.before_a_text
    # Tokens that are used must have the same names in both, added ones too.
    if not tokenizer.reads_as(own, used) or bos not in (own.before_a_text, "nothing"):
        raise InputError(
            f"{tokenizer.name}, which puts {bos} before a text, is another tokenizer than that of {name},"
            f" {own.name}, which puts {own.before_a_text} there: {remedy}"
        )
    if bos != own.before_a_text:
        logger.warning(
            "%s was trained with %s before a text, and reads this without it", name, own.before_a_text
        )
