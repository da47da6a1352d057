"""A byte-level BPE trained on the corpus."""

from collections.abc import Iterable
from multiprocessing.connection import Connection

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from pipeline.errors import UnfinishedError
from pipeline.text.pieces import cut
from pipeline.text.tokenizer import EOS_TOKENS, DocumentTokenizer
from pipeline.text.worker_processes import kill, leave_with_parent, worker_context

_LONGEST_WORD = 1024
"""Bytes. Each merge goes over the words that it is in, so that one word of a million bytes took minutes."""


def train_bpe(texts: Iterable[str], size: int, eos_token: str = EOS_TOKENS[0]) -> DocumentTokenizer:
    """A byte-level BPE of `size` tokens, EOS (ID 0) and the 256 bytes among them.

    A small corpus gives fewer tokens: merging stops where no pair of tokens is left to merge. Words of more
    than 1,024 bytes are counted as several.
    """
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bounded = pre_tokenizers.Split(Regex(f".{{{_LONGEST_WORD}}}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bounded])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[eos_token],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # A word of ByteLevel ends before every blank and every sign that follows a letter.
    pieces = (piece for text in texts for piece in cut(text, lambda before, after: True))
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.pre_tokenizer = words
    return DocumentTokenizer(tokenizer, eos_token)


def train_bpe_apart(texts: Iterable[str], size: int, eos_token: str = EOS_TOKENS[0]) -> DocumentTokenizer:
    """`train_bpe` in a process of its own: the library answers no Ctrl-C while it merges, but can be killed.

    Raises:
        UnfinishedError: the process was ended from outside.
    """
    context = worker_context()
    connection, of_trainer = context.Pipe()
    process = context.Process(target=_train_for_parent, args=(of_trainer, size, eos_token))
    try:
        process.start()
        of_trainer.close()
        for text in texts:
            connection.send(text)
        connection.send(None)
        trained: DocumentTokenizer = connection.recv()
    except (EOFError, ConnectionError) as error:
        raise UnfinishedError(
            "the process that trains the tokenizer was ended from outside, most likely for want of memory;"
            " give the job more, then run the same command again"
        ) from error
    finally:
        if process.pid is not None:
            kill([process])
    return trained


def _train_for_parent(connection: Connection, size: int, eos_token: str) -> None:
    leave_with_parent()
    connection.send(train_bpe(iter(connection.recv, None), size, eos_token))
