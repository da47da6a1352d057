"""Near tokens behind distant ones whose number, text and position IDs are chosen freely.

In a transformer with relative positions two things change with length: how many tokens are attended to, and
how far away they are. A `Placement` sets the two apart: the same near tokens, behind distant tokens of the
same text or of another, few or many, at distances seen in training or not.

Shapes: L chunk, B near contexts of N tokens, D distant tokens; T targets, Q in each near context (T = B Q).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    read_prefix,
)
from pipeline.measuring.flags import LAST, NEAR, ContextLengths, Placement
from pipeline.measuring.rules import SWAP
from pipeline.models.interface import CausalLM, Predictions, Prefix
from pipeline.results.schemas import Columns
from pipeline.text.chunks import Chunk

DistantTexts = Mapping[str, Mapping[tuple[int, int], Prefix]]
"""Document -> how many of its first tokens, and over how many IDs -> these as they were read."""


def distant_ids(num_distant: int, span: int) -> np.ndarray:
    """Position IDs of distant tokens: int64, ascending, from 0."""
    # Six tokens over three IDs stand at 0, 0, 1, 1, 2, 2.
    return np.arange(num_distant) * span // num_distant


def read_distant(
    texts: Mapping[str, np.ndarray], swaps: Iterable[tuple[int, int]], model: CausalLM
) -> DistantTexts:
    """Read the texts' first tokens, as many and over as many IDs as placements of kind `swap` say."""
    return {
        document_id: {
            (number, span): read_prefix(model, text_L[:number], distant_ids(number, span))
            for number, span in swaps
        }
        for document_id, text_L in texts.items()
    }


def measure_placements(
    model: CausalLM,
    chunk: Chunk,
    lengths: ContextLengths,
    num_near: int,
    share_near: bool,
    placements: Sequence[Placement],
    distant: DistantTexts,
) -> Iterator[tuple[str, Columns]]:
    """A row a target, placement and distant text: artefact -> columns.

    `share_near`: whether the targets share one near context; see `measured_placements`.
    """
    targets_T = lengths.targets_T
    cases = [
        (one, text, distant[text][one.num_distant, one.span] if text else None)
        for one in placements
        for text in (distant if one.kind == SWAP else [None])
        if text != chunk.document_id  # a text is not its own distraction
    ]
    for placement, document_id, found, entropies in measured_placements(
        model,
        chunk.token_ids_L,
        targets_T[None] if share_near else targets_T[:, None],
        num_near,
        cases,
        Batching.for_model(model),
    ):
        of_targets: Columns = {
            "target_position": (chunk.start + targets_T).tolist(),
            "target_token_id": chunk.token_ids_L[targets_T].tolist(),
            "placement": [placement] * len(targets_T),
            "distant_document_id": [document_id] * len(targets_T),
            "loss": found.losses.tolist(),
            "divergence": found.divergences.tolist(),
            "entropy": entropies,
        }
        yield "length_interference", of_targets


def measured_placements(
    model: CausalLM,
    chunk_L: np.ndarray,
    targets_BQ: np.ndarray,
    num_near: int,
    cases: Iterable[tuple[Placement, str | None, Prefix | None]],
    batching: Batching,
) -> Iterator[tuple[str, str | None, Measured, list[float | None]]]:
    """The near tokens alone, then each case: its placement's name, the ID of the distant text, each target's
    loss and KL from its prediction by the near tokens alone [T], and the entropies of that, given once.

    Args:
        targets_BQ: places in the chunk; those of a row share a near context, the tokens before the last one.
        num_near: N.
        cases: placements, those of kind `swap` with a distant text, by its document and as it was read.
    """
    targets_T = targets_BQ.ravel()
    # Targets 90 and 99 that share 20 tokens: places 79 to 98, query rows 10 and 19.
    near_BN = targets_BQ[:, -1:] + np.arange(-num_near, 0)
    queries_BQ = num_near - 1 + targets_BQ - targets_BQ[:, -1:]
    rows = Rows(chunk_L[near_BN], np.arange(num_near)[None], None, queries_BQ)
    hidden = [hidden_states(model, rows.of_sequences(batch)) for batch in batching.of_many(*near_BN.shape)]
    reference = Predictions.of(model.logits(torch.cat(hidden).flatten(0, 1)))
    # The reference is this very prediction: its losses need no second pass, and its KL is 0.
    losses_T = -reference.log_probs_TV.cpu().numpy()[np.arange(len(targets_T)), chunk_L[targets_T]]
    yield NEAR, None, Measured(losses_T, np.zeros_like(losses_T)), reference.entropies_T.tolist()

    index_BQ = np.arange(len(targets_T)).reshape(targets_BQ.shape)
    for placement, document_id, distant in cases:
        number = placement.num_distant
        if placement.kind == LAST:
            found = measured_windows(model, chunk_L, targets_T, number, batching, reference)
        else:
            # Own distant tokens differ between near contexts and run with each, ahead of the queries. A swap
            # is a prefix, which query rows do not count.
            num_ahead = number if distant is None else 0
            places_BN = near_BN[:, :1] + np.arange(-num_ahead, num_near)
            ids_N = np.concatenate(
                [distant_ids(number, placement.span)[:num_ahead], placement.near_start + np.arange(num_near)]
            )
            rows = Rows(chunk_L[places_BN], ids_N[None], None, num_ahead + queries_BQ)
            contexts = Pass(rows, chunk_L[targets_BQ], index_BQ, distant)
            found = Measured(*np.reshape(measured_contexts(model, batching, reference, contexts), (2, -1)))
        yield placement.name, document_id, found, [None] * len(targets_T)
