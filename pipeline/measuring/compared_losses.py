"""The rows of loss_differences for one chunk: a target's loss and prediction under several contexts.

Shapes: T targets.
"""

from collections.abc import Sequence

from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.context_loss import measured_windows
from pipeline.influence.foreign_context import measured_in_foreign_context, measured_in_sequence
from pipeline.influence.leave_one_out import PackedSequence, own_context, read_everything
from pipeline.influence.windowed_losses import windowed_losses
from pipeline.measuring.evaluate_checkpoints import LoadedModel
from pipeline.models.causal_lm import NotFiniteLossError
from pipeline.results.columns import Columns
from pipeline.text.chunks import Chunk


def compared_losses(
    loaded: LoadedModel,
    chunk: Chunk,
    references: Sequence[LoadedModel],
    lengths: ContextLengths,
    *,
    windowed_stride: int | None,
    is_compared: bool,
) -> dict[str, Columns]:
    """A row a target: losses under the long, the short and a foreign context, divergences from the long one.

    Args:
        references: the model of --reference-model, or none where that is this one.
        is_compared: whether there is a reference model.
        windowed_stride: of LongPPL's short context; None: it is not measured.
    """
    model, batching, targets_T = loaded.model, loaded.batching, lengths.targets_T
    chunk_L, short_length = chunk.token_ids_L, lengths.short_context_length
    own = own_context(chunk_L, lengths)
    long = read_everything(model, own)
    short = measured_windows(model, chunk_L, targets_T, short_length, batching, long.predictions)
    foreign = measured_in_foreign_context(model, chunk_L, chunk.null_token_ids_L, lengths, long.predictions)
    columns = chunk.target_columns(targets_T) | {
        "target_token_id": chunk_L[targets_T].tolist(),
        "num_long_context_tokens": targets_T.tolist(),
        "short_context_loss": short.losses.tolist(),
        "long_context_loss": long.losses_T.tolist(),
        "loss_difference": (short.losses - long.losses_T).tolist(),
        "foreign_context_loss": foreign.losses.tolist(),
        "specific_gain": (foreign.losses - long.losses_T).tolist(),
        "short_context_divergence": short.divergences.tolist(),
        "foreign_context_divergence": foreign.divergences.tolist(),
    }
    if windowed_stride is not None:
        windowed = windowed_losses(model, chunk_L, targets_T, short_length, windowed_stride, batching)
        columns["windowed_short_context_loss"] = windowed.tolist()
    if is_compared:
        columns["reference_divergence"] = _from_reference(loaded, references, own)
    return {"loss_differences": columns}


def _from_reference(
    loaded: LoadedModel, references: Sequence[LoadedModel], own: PackedSequence
) -> list[float]:
    """KL(p_ref || p), both under the long context, of each target; 0 of the reference itself.

    Raises:
        NotFiniteLossError: a model gives what is no number; the reference is named where it does.
    """
    for reference in references:
        try:
            predictions = read_everything(reference.model, own).predictions
        except NotFiniteLossError as error:
            error.model_name = reference.name
            raise
        return measured_in_sequence(loaded.model, own, predictions).divergences.tolist()
    return [0.0] * len(own.target_ids_T)
