"""Whether tokens and model belong together: one check, of the programs, explain, the library and evaluators.

    known of the model   refused
    its own tokenizer    a tokenizer that reads a text as other tokens (`DocumentTokenizer.reads_as`)
                         or puts a BOS before it that the model's own does not; the reverse is a warning, for
                         it may be meant (--bos none)
    only its size        a tokenizer of T tokens, if the model has more than T + max(512, T / 20) rows: fewer
                         pad its embedding; a warning says that no more can be told
    in any case          a token that a text has and that the model has no row for

A tokenizer may be larger than the model if no text uses the rest. Shapes: V vocabulary.
"""

from collections.abc import Iterable

import numpy as np

from pipeline.cli import InputError, logger
from pipeline.models.interface import CausalLM
from pipeline.models.load import Checkpoint
from pipeline.text.tokenizer import DocumentTokenizer, load_tokenizer


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
