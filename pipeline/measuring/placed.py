"""Near tokens behind distant ones whose number, text and position IDs are chosen freely.

In a transformer with relative positions two things change with length: how many tokens are attended to, and
how far away they are. A `Placement` sets the two apart: the same near tokens, behind distant tokens of the
same text or of another, few or many, at distances seen in training or not.

Shapes: L chunk, B near contexts of N tokens, D distant tokens; T targets, Q in each near context (T = B Q).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from pipeline.measuring.contexts import (
    Batching,
    Measured,
    Pass,
    Rows,
    hidden_states,
    measured_contexts,
    measured_windows,
)
from pipeline.measuring.flags import LAST, NEAR, SWAP, Placement
from pipeline.models.interface import CausalLM, Predictions, Prefix


def distant_ids(num_distant: int, span: int) -> np.ndarray:
    """Position IDs of distant tokens: int64, ascending, from 0."""
    # Six tokens over three IDs stand at 0, 0, 1, 1, 2, 2.
    return np.arange(num_distant) * span // num_distant


def measured_placements(
    model: CausalLM,
    chunk_L: np.ndarray,
    targets_BQ: np.ndarray,
    num_near: int,
    placements: Sequence[Placement],
    batching: Batching,
    distant_of: Callable[[Placement], Mapping[str, Prefix]],
) -> Iterator[tuple[str, str | None, Measured, np.ndarray | None]]:
    """The near tokens alone, with the entropies, then each placement and distant text: its name, the text's
    ID, each target's loss and KL from its prediction by the near tokens alone [T].

    Args:
        targets_BQ: places in the chunk; those of a row share a near context, the tokens before the last one.
        num_near: N.
        distant_of: gives, for a placement of kind `swap`, the distant texts as they were read, by document.
    """
    targets_T = targets_BQ.ravel()
    # Targets 90 and 99 that share 20 tokens: places 79 to 98, query rows 10 and 19.
    near_BN = targets_BQ[:, -1:] + np.arange(-num_near, 0)
    queries_BQ = num_near - 1 + targets_BQ - targets_BQ[:, -1:]
    rows = Rows(chunk_L[near_BN], np.arange(num_near)[None], None, queries_BQ)
    batches = batching.of_many(*near_BN.shape)
    hidden_BQD = torch.cat([hidden_states(model, rows.of_sequences(batch)) for batch in batches])
    reference = Predictions.of(model.logits(hidden_BQD.flatten(0, 1)))
    # The reference is this very prediction: its losses need no second pass, and its KL is 0.
    losses_T = -reference.log_probs_TV.cpu().numpy()[np.arange(len(targets_T)), chunk_L[targets_T]]
    yield NEAR, None, Measured(losses_T, np.zeros_like(losses_T)), reference.entropies_T

    def measured(placement: Placement, distant: Prefix | None) -> Measured:
        number = placement.num_distant
        if placement.kind == LAST:
            return measured_windows(model, chunk_L, targets_T, number, batching, reference)
        places_BN = near_BN
        ids_N = placement.near_start + np.arange(num_near)
        first_row = 0
        if distant is None:
            # Own distant tokens differ between near contexts and run with each, ahead of the queries. A swap
            # is a prefix, which query rows do not count.
            places_BN = near_BN[:, :1] + np.arange(-number, num_near)
            ids_N = np.concatenate([distant_ids(number, placement.span), ids_N])
            first_row = number
        rows = Rows(chunk_L[places_BN], ids_N[None], None, first_row + queries_BQ)
        index_BQ = np.arange(len(targets_T)).reshape(targets_BQ.shape)
        contexts = Pass(rows, chunk_L[targets_BQ], index_BQ, distant)
        return Measured(*np.reshape(measured_contexts(model, batching, reference, contexts), (2, -1)))

    for placement in placements:
        texts = distant_of(placement) if placement.kind == SWAP else {None: None}
        for document_id, distant in texts.items():
            yield placement.name, document_id, measured(placement, distant), None
