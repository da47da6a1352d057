"""The weights of heads that the rules learned_attention* need: fitted once a model, kept with its results.

They are fitted to what leaving tokens out of chunks of the *training* tokens does, at the lengths that are
measured, so that no document that is measured has a part in them.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.head_weights import RIDGE, fitted_head_weights
from pipeline.influence.measurement import HeadWeights, Measurement
from pipeline.influence.selection import far_contexts
from pipeline.measuring.evaluate_checkpoints import LoadedModel
from pipeline.measuring.tasks import share_of_this_process
from pipeline.results.folder import read_artefact
from pipeline.results.names import ATTENTION_HEADS, OWN
from pipeline.results.stage_output import StageOutput
from pipeline.stage import progress
from pipeline.text.tokenized_data import TokenizedData
from pipeline.text.training_chunks import training_chunks

LEARNING_RULES = ("learned_attention", "learned_attention_divergence")
"""Those that need the weights."""


def head_weights_of(
    loaded: LoadedModel,
    arguments: argparse.Namespace,
    lengths: ContextLengths,
    checkpoint_sha256: str,
    dtype: str,
) -> HeadWeights:
    """The weights of a model: read where they are among the results, else fitted and written there.

    Args:
        loaded: the model.
        arguments: of influential_tokens.
        lengths: which tokens are predicted, and what they see.
        checkpoint_sha256: of the model's files.
        dtype: what it computes in.

    Raises:
        InputError: there are not enough training tokens, the results folder holds weights that were fitted
            otherwise, or the model cannot be looked into.
    """
    data = TokenizedData.open(arguments.data)
    output = StageOutput(
        arguments.results,
        ATTENTION_HEADS,
        loaded.name,
        settings={
            "short_context_length": lengths.short_context_length,
            "long_context_length": lengths.long_context_length,
            "targets_per_chunk": lengths.targets_per_chunk,
            "learning_chunks": arguments.learning_chunks,
            "ridge": RIDGE,
            "dtype": dtype,
        },
        inputs={"checkpoint": checkpoint_sha256, "training_tokens": data.train_sha256},
        num_shards=1,
    )
    if output.is_done():
        return _read(arguments, loaded.name)
    chunks = training_chunks(data, lengths.long_context_length, arguments.learning_chunks)
    weights = _fitted(loaded, lengths, chunks)
    # Tasks of an array that begin together fit the same weights each, to the same bytes.
    with output.writing(share_of_this_process(arguments).name):
        if not output.is_done():
            columns = {
                "head_index": list(range(len(weights.losses_H))),
                "loss_weight": weights.losses_H.tolist(),
                "divergence_weight": weights.divergences_H.tolist(),
            }
            output.write_shard(0, {ATTENTION_HEADS: columns})
    return weights


def _read(arguments: argparse.Namespace, model: str) -> HeadWeights:
    rows = read_artefact(arguments.results, ATTENTION_HEADS, only={"model": [model]})
    rows = rows.sort_values("head_index")
    return HeadWeights(np.array(rows["loss_weight"]), np.array(rows["divergence_weight"]))


def _fitted(loaded: LoadedModel, lengths: ContextLengths, chunks: Sequence[np.ndarray]) -> HeadWeights:
    measurement = Measurement(loaded.model, lengths, loaded.batching)
    contexts = (
        far_contexts(measurement, chunk_L, chunk_L)[OWN]
        for chunk_L in progress(chunks, f"{LEARNING_RULES[0]} {loaded.name}: training", "chunk")
    )
    return fitted_head_weights(contexts, LEARNING_RULES[0])
