"""The checkpoints that a measuring stage is given: found, named, on which device, of the data's tokens."""

import argparse
from collections.abc import Iterable, Sequence

import torch

from pipeline.errors import InputError
from pipeline.models.causal_lm import CausalLM
from pipeline.models.devices import usable_device
from pipeline.models.loading import Checkpoint, find_model
from pipeline.text.manifest import TOKENIZER_FILE
from pipeline.text.tokenized_data import EvaluationDocument, TokenizedData
from pipeline.text.tokenizer import knows_token_ids

_ON_THE_CPU = "--device cpu computes without it"


def device_to_measure_on(arguments: argparse.Namespace) -> torch.device:
    """The device that is asked for, or the best one here.

    Raises:
        InputError: it cannot be computed on.
    """
    if arguments.status:
        return torch.device("cpu")
    return usable_device(arguments.device, "leave it out, or say cpu" if arguments.device else _ON_THE_CPU)


def named_checkpoints(
    words: Iterable[str], arguments: argparse.Namespace, flag: str = "--checkpoints"
) -> dict[str, Checkpoint]:
    """The checkpoints that the words of `flag` mean, by the names that results are filed under.

    Raises:
        InputError: one is missing, or two have one name.
    """
    named: dict[str, Checkpoint] = {}
    for word in words:
        checkpoint = find_model(word, arguments.revision, arguments.trust_remote_code)
        if checkpoint.name in named:
            raise InputError(
                f"two of {flag} are named '{checkpoint.name}'; results are filed by the name of the"
                " folder, or the last part of a hub name, so these must differ"
            )
        named[checkpoint.name] = checkpoint
    return named


def refuse_foreign_tokens(
    model: CausalLM, data: TokenizedData, documents: Sequence[EvaluationDocument], checkpoint: Checkpoint
) -> None:
    """Refuse a model that was not trained on tokens of the data's tokenizer, as far as that can be told.

    Raises:
        InputError: sizes or tokenizers differ.
    """
    largest = max(int(document.token_ids.max()) for document in documents)
    if not checkpoint.fits(model, data.vocabulary_size) or largest >= model.vocabulary_size:
        raise InputError(
            f"the tokenizer of {data.folder} has {data.vocabulary_size} tokens (largest ID used: {largest})"
            f" and {checkpoint.folder} a vocabulary of {model.vocabulary_size}: they do not belong together"
        )
    # Sizes tell little where a vocabulary may be padded, but such models mostly bring their tokenizer along.
    tokenizers = checkpoint.folder / TOKENIZER_FILE, data.folder / TOKENIZER_FILE
    if all(path.is_file() for path in tokenizers) and not knows_token_ids(*tokenizers):
        raise InputError(
            f"{data.folder} was tokenized with another tokenizer than {tokenizers[0]}: tokenize the text"
            f" again with --tokenizer {tokenizers[0]}"
        )
