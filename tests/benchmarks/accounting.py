"""What each way of measuring influence has to compute, counted: pairs, token-forwards, operations.

A chunk of L tokens has S = L - 1 rows, m targets and, of its last target, F = S - s far tokens. To leave
out each of the F tokens for all targets together takes F forward passes of S rows: F S token-forwards. With
the rows before the removed one shared, leaving out row i takes the S - 1 - i rows after it. So counting
predicts a gain of F S / sum over i < F of (S - 1 - i), about 2 L / (L + s): 1.6 at s = 64 and L = 256, 1.78
at 512, 1.94 at 2,048, and never 2. The token-forwards shown count the pass run once as well: S rows for
the long losses and the shared prefix.

Operations are those of the matrix products that the method asks for: projections, scores and weighted sums of
visible (query, key) pairs only, vocabulary logits at targets. Rows that a batch runs in vain, masked-out
pairs, norms, softmax and copies count as nothing, so the fraction of the peak is that of useful work.

Shapes: L chunk, S rows, T targets, F far tokens, D width, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
from olmo.config import ModelConfig
from olmo.model import OLMo

from pipeline.measuring.flags import ContextLengths


@dataclass(frozen=True)
class ModelSizes:
    """What a token-forward costs."""

    num_layers: int
    width: int
    vocabulary_size: int
    block_weights: int
    """Weights of one block's projections."""
    key_value_weights: int
    """Of these, the ones that make keys and values."""

    @classmethod
    def of(cls, model: OLMo) -> "ModelSizes":
        """Counted on the model itself."""
        config: ModelConfig = model.config
        block = model.transformer.blocks[0]
        matrices = (block.att_proj, block.attn_out, block.ff_proj, block.ff_out)
        return cls(
            config.n_layers, config.d_model, config.vocab_size,
            sum(matrix.weight.numel() for matrix in matrices), sum(block.fused_dims[1:]) * config.d_model,
        )  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What a whole chunk asks for."""

    num_passes: int
    token_forwards: int
    flops: float


def num_pairs(lengths: ContextLengths) -> int:
    """(target, far token) pairs of a chunk."""
    return int(lengths.num_far_tokens_T.sum())


def predicted_gain(lengths: ContextLengths) -> float:
    """How many times fewer token-forwards the suffixes are than the whole passes."""
    num_rows, num_far = _rows_and_far(lengths)
    return num_far * num_rows / int((num_rows - 1 - np.arange(num_far)).sum())


def work_of_pairs(sizes: ModelSizes, lengths: ContextLengths) -> Work:
    """A forward pass a pair: target t is predicted from its t tokens, `num_far` times."""
    targets_T, num_far_T = lengths.targets_T, lengths.num_far_tokens_T
    rows = int((num_far_T * targets_T).sum())
    edges = int((num_far_T * targets_T * (targets_T + 1) // 2).sum())
    return Work(num_pairs(lengths), rows, _flops(sizes, rows, edges, rows, edges, num_pairs(lengths)))


def work_of_whole_passes(sizes: ModelSizes, lengths: ContextLengths, last_layer_at_targets: bool) -> Work:
    """A whole forward pass a removed token, for all targets."""
    num_rows, num_far = _rows_and_far(lengths)
    rows, edges = num_far * num_rows, num_far * num_rows * (num_rows + 1) // 2
    last_rows, last_edges = (
        (num_far * size for size in _at_targets(lengths)) if last_layer_at_targets else (rows, edges)
    )
    return Work(num_far, rows, _flops(sizes, rows, edges, last_rows, last_edges, num_pairs(lengths)))


def work_of_suffixes(sizes: ModelSizes, lengths: ContextLengths) -> Work:
    """The rows after each removed token, which see the prefix, and all rows once."""
    num_rows, num_far = _rows_and_far(lengths)
    suffix_rows = int((num_rows - 1 - np.arange(num_far)).sum())
    # The row of token j sees j of the tokens 0 ... j when one before it is gone.
    suffix_edges = sum(int(np.arange(removed + 1, num_rows).sum()) for removed in range(num_far))
    rows = num_rows + suffix_rows
    edges = num_rows * (num_rows + 1) // 2 + suffix_edges
    last_rows, last_edges = ((num_far + 1) * size for size in _at_targets(lengths))
    return Work(num_far + 1, rows, _flops(sizes, rows, edges, last_rows, last_edges, num_pairs(lengths)))


def _rows_and_far(lengths: ContextLengths) -> tuple[int, int]:
    return lengths.long_context_length - 1, int(lengths.num_far_tokens_T[-1])


def _at_targets(lengths: ContextLengths) -> tuple[int, int]:
    """Rows that predict the targets, and (query, key) pairs there."""
    return lengths.targets_per_chunk, int(lengths.targets_T.sum())


def _flops(
    sizes: ModelSizes, rows: int, edges: int, last_rows: int, last_edges: int, vocabulary_rows: int
) -> float:
    """`rows` and `edges` (query, key) of all layers but the last, which makes keys and values at all rows."""
    below = (sizes.num_layers - 1) * (2.0 * rows * sizes.block_weights + 4.0 * edges * sizes.width)
    keys_and_values = 2.0 * rows * sizes.key_value_weights
    rest = 2.0 * last_rows * (sizes.block_weights - sizes.key_value_weights) + 4.0 * last_edges * sizes.width
    return below + keys_and_values + rest + 2.0 * vocabulary_rows * sizes.width * sizes.vocabulary_size
