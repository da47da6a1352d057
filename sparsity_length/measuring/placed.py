"""Near tokens behind distant ones whose number, text and position IDs are chosen freely.

In a transformer with relative positions two things change with length: how many tokens are attended to, and
how far away they are. A `Placement` sets the two apart: the same near tokens, behind distant tokens of the
same text or of another, few or many, at distances seen in training or not.

Shapes: L chunk, B near contexts of N tokens, D distant tokens; T targets, Q in each near context (T = B Q).
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import numpy as np
import torch

from sparsity_length.measuring.contexts import Batching, Rows, hidden_states, read_prefix
from sparsity_length.measuring.rules import SWAP
from sparsity_length.measuring.settings import FULL, LAST, NEAR, Placement, Placing
from sparsity_length.models.interface import CausalLM, Predictions, Prefix, refuse_not_finite
from sparsity_length.results.schemas import Columns
from sparsity_length.text.chunks import Chunk

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
    model: CausalLM, chunk: Chunk, placing: Placing, distant: DistantTexts
) -> Iterator[tuple[str, Columns]]:
    """One row per target, placement and distant text: table -> columns."""
    targets_T = placing.lengths.targets_T
    most = placing.most_distant
    cases: list[tuple[Placement, str | None, Prefix | None]] = []
    for one in placing.parsed:
        if one.kind != SWAP:
            cases.append((one, None, None))
            continue
        number_and_span = one.num_distant or most, one.span or most
        # A text is not its own distraction.
        others = [text for text in distant if text != chunk.document_id]
        cases += [(one, text, distant[text][number_and_span]) for text in others]
    placements = measured_placements(
        model,
        chunk.token_ids_L,
        targets_T[None] if placing.share_near else targets_T[:, None],
        placing.near_context_length,
        cases,
        Batching.for_model(model),
        placing.compared_with,
    )
    for placement, document_id, measured in placements:
        columns = {
            "target_position": chunk.start + targets_T,
            "target_token_id": chunk.token_ids_L[targets_T],
            "placement": placement,
            "distant_document_id": document_id,
            **measured,
        }
        yield "length_interference", columns


def measured_placements(
    model: CausalLM,
    chunk_L: np.ndarray,
    targets_BQ: np.ndarray,
    num_near: int,
    cases: Iterable[tuple[Placement, str | None, Prefix | None]],
    batching: Batching,
    compared_with: str = NEAR,
) -> Iterator[tuple[str, str | None, Columns]]:
    """The near tokens alone, then each case: its placement's name, the ID of the distant text, and columns
    of one row per target, `loss`, `divergence`, `is_top` and, of the first, `entropy`.

    Call order:
        predicted           the near tokens alone, as if nothing stood before them
        own_prefix, behind_all
                            the full context, if placements are compared with it
        own_prefix          for each case the own distant tokens, read once if all near contexts share them
        predicted, placed   its rows behind these tokens; losses, divergences and top predictions

    Args:
        targets_BQ: places in the chunk; those of a row share a near context, the tokens before the last one.
        num_near: N.
        cases: placements, those of kind `swap` with a distant text, by its document and as it was read.
        compared_with: `NEAR` or `FULL`.
    """
    targets_T = targets_BQ.ravel()
    target_ids_T = chunk_L[targets_T]
    index_T = torch.arange(len(targets_T), device=model.device)

    def predicted(rows: Rows, prefix: Prefix | None = None) -> Predictions:
        """What the query rows predict, in batches."""
        batches = batching.of_many(*rows.token_ids_BS.shape)
        hidden = [hidden_states(model, rows.of_sequences(batch), prefix) for batch in batches]
        return Predictions.of(model.logits(torch.cat(hidden).flatten(0, 1)))

    def placed(found: Predictions, reference: Predictions) -> dict[str, np.ndarray]:
        """What is found, and how far it is from the reference."""
        losses_T = found.losses(target_ids_T)
        divergences_T = reference.divergences(found.log_probs_TV, index_T).cpu().numpy()
        # Named by its place in the chunk, wherever its row was placed.
        where = torch.as_tensor(targets_T[None] - 1), torch.arange(len(targets_T))[None]
        for what, values_T in (("loss", losses_T), ("divergence", divergences_T)):
            refuse_not_finite(torch.as_tensor(values_T[None]), *where, what)
        # Of two tokens that share the top, both are: no order of the vocabulary decides.
        are_top_T = losses_T == -found.log_probs_TV.amax(-1).cpu().numpy()
        return {"loss": losses_T, "divergence": divergences_T, "is_top": are_top_T}

    # Targets 90 and 99 that share 20 tokens: places 79 to 98, query rows 10 and 19.
    near_BN = targets_BQ[:, -1:] + np.arange(-num_near, 0)
    queries_BQ = num_near - 1 + targets_BQ - targets_BQ[:, -1:]
    most = int(near_BN[-1, 0])

    @lru_cache(maxsize=1)  # placements that differ in where near begins stand one after another
    def own_prefix(number: int, span: int) -> Prefix:
        return read_prefix(model, chunk_L[most - number : most], distant_ids(number, span))

    def behind_all(gap: int) -> Rows:
        """The near tokens, and which see what of all distant ones, one prefix for all near contexts."""
        # Its rows are positions: near tokens from place 90 on see rows 0 to 89.
        sees_distant_BP = np.arange(most) < near_BN[:, :1]
        visible_BNK = np.concatenate(
            [
                np.repeat(sees_distant_BP[:, None], num_near, axis=1),
                np.repeat(np.tri(num_near, dtype=bool)[None], len(near_BN), axis=0),
            ],
            axis=-1,
        )
        return Rows(chunk_L[near_BN], near_BN + gap, visible_BNK, queries_BQ)

    alone = Rows(chunk_L[near_BN], np.arange(num_near)[None], None, queries_BQ)
    near = predicted(alone)
    full = compared_with == FULL and most > 0  # else the near tokens are the full context
    reference = predicted(behind_all(0), own_prefix(most, most)) if full else near
    yield NEAR, None, {**placed(near, reference), "entropy": reference.entropies_T}
    for placement, document_id, distant in cases:
        number = placement.num_distant
        if placement.kind == LAST:
            # A window for each target, never shared: target 100 reads places 96 to 99, and row 3 predicts it.
            places_TN = targets_T[:, None] + np.arange(-number, 0)
            # As behind nothing: IDs count from the first near token.
            ids_TN = places_TN - np.repeat(near_BN[:, :1], targets_BQ.shape[1], axis=0)
            rows = Rows(chunk_L[places_TN], ids_TN, None, np.full((len(targets_T), 1), number - 1))
        elif number == 0:
            distant = distant or own_prefix(most, most)
            rows = behind_all(placement.gap)
        else:
            if distant is None and len(near_BN) == 1:
                distant = own_prefix(number, placement.span)
            # Own distant tokens of many near contexts differ and run with each, ahead of the queries. Others
            # are a prefix, which query rows do not count.
            num_ahead = number if distant is None else 0
            places_BN = near_BN[:, :1] + np.arange(-num_ahead, num_near)
            ids_N = np.concatenate(
                [distant_ids(number, placement.span)[:num_ahead], placement.near_start + np.arange(num_near)]
            )
            rows = Rows(chunk_L[places_BN], ids_N[None], None, num_ahead + queries_BQ)
        yield placement.name, document_id, placed(predicted(rows, distant), reference)
