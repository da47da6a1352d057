"""Whether the examples of a size have room, and a use, for the tokens that the rules are to select."""

from collections.abc import Callable, Sequence

from pipeline.errors import InputError
from pipeline.influence.context_lengths import ContextLengths
from pipeline.synthetic.evaluation import Cell, test_examples
from pipeline.synthetic.finding import far_dependencies
from pipeline.synthetic.tasks.example_batch import ExampleBatch
from pipeline.synthetic.tasks.registry import Task

DependenciesOf = Callable[[ExampleBatch], Sequence[Sequence[Sequence[int]]]]
"""Examples -> for each of them and each target the places that decide it."""


def of_tokens(batch: ExampleBatch) -> Sequence[Sequence[Sequence[int]]]:
    """The places that decide the tokens."""
    return batch.dependencies


def refuse_unfit_k(
    task: Task,
    cells: Sequence[Cell],
    dependencies_of: DependenciesOf,
    *,
    num_examples: int,
    test_seed: int,
    largest_k: int,
    short_context_length: int,
) -> None:
    """Refuse, before anything is measured, what the examples of some size have no room or no use for.

    Args:
        task: whose examples.
        cells: test sizes and k.
        dependencies_of: what is to be found in them.
        num_examples: of each size and k.
        test_seed: of the examples.
        largest_k: tokens that each rule selects.
        short_context_length: s, in tokens.

    Raises:
        InputError: names the size.
    """
    for cell in cells:
        batch, _ = test_examples(task, cell, num_examples, test_seed)
        lengths = lengths_of(batch, short_context_length)
        found = [places for of_one in dependencies_of(batch) for places in far_dependencies(of_one, lengths)]
        num_far, most = int(lengths.num_far_tokens_T[0]), max(map(len, found))
        if reason := _why_unfit(largest_k, num_far, most, in_words(cell)):
            raise InputError(reason)


def lengths_of(batch: ExampleBatch, short_context_length: int) -> ContextLengths:
    """An example as one chunk, whose last tokens, the response, are the targets."""
    num_tokens = batch.token_ids_BS.shape[1]
    return ContextLengths(short_context_length, num_tokens, num_tokens - batch.num_prompt_tokens)


def in_words(cell: Cell) -> str:
    """The size and, where there is one, k."""
    size, sparsity = cell
    return f"size {size}" if sparsity is None else f"size {size}, k {sparsity}"


def _why_unfit(largest_k: int, num_far: int, most: int, where: str) -> str | None:
    """What is wrong with selecting `largest_k` tokens, if anything is.

    Args:
        largest_k: tokens that each rule selects. Precision and recall are equal at the number of true
            dependencies, so it must not be below that.
        num_far: far-context tokens of the first answer, which has the fewest.
        most: true dependencies that an answer has in its far context.
        where: the size and k, in words.
    """
    if most == 0:
        return (
            f"no answer of the test examples of {where} depends on its far context; choose larger --sizes, a"
            " smaller --short-context-length or more --num-examples"
        )
    if most > num_far:
        return (
            f"an answer of {where} has {most} true dependencies in its far context, but the first answer only"
            f" {num_far} tokens to select from; choose larger --sizes or a smaller --short-context-length"
        )
    if largest_k > num_far:
        return (
            f"--largest-k {largest_k} is more than the {num_far} far-context tokens of the first answer of"
            f" {where}; choose a smaller --largest-k or larger --sizes"
        )
    if largest_k < most:
        return (
            f"--largest-k {largest_k} is less than the {most} true dependencies that an answer of {where} has"
            f" in its far context; choose --largest-k {most} or more"
        )
    return None
