"""Near tokens behind distant ones whose number, text and position IDs are chosen freely.

In a transformer with relative positions two things change with length: how many tokens are attended to, and
how far away they are. A `Placement` sets the two apart: the same near tokens, behind distant tokens of the
same text or of another, few or many, at distances seen in training or not.

Shapes: L chunk, T targets, B near contexts of N tokens with Q targets each (T = B Q), D distant tokens.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.cli import InputError
from pipeline.measuring.contexts import (
    Batching,
    Measured,
    Pass,
    Rows,
    hidden_states,
    measured_contexts,
    measured_windows,
)
from pipeline.models.interface import CausalLM, Predictions, Prefix

OWN = "own"
SWAP = "swap"
LAST = "last"
NEAR = "near"
"""Kinds of placement: distant tokens of the same text; of another; fewer near tokens; near tokens alone."""


@dataclass(frozen=True)
class Placement:
    """Distant tokens before the near ones: `own:192`, `swap:512@10752`, `swap:192/32`, or `last:4`.

    KIND:NUMBER[/SPAN][@START]: NUMBER distant tokens stand at the position IDs 0 to SPAN - 1, evenly, several
    at one ID where SPAN is smaller; the near tokens begin at ID START. Left out, SPAN is NUMBER, and START is
    SPAN: all IDs without gaps. `last:N` is the last N of the near tokens, and nothing else.
    """

    name: str
    kind: str
    num_distant: int
    span: int
    near_start: int

    @classmethod
    def parse(cls, name: str) -> "Placement":
        """Read a placement; InputError says what is wrong with it."""
        found = re.fullmatch(r"(own|swap|last):([1-9]\d{0,8})(?:/([1-9]\d{0,8}))?(?:@(\d{1,9}))?", name)
        if found is None or (found[1] == LAST and (found[3] or found[4])):
            raise InputError(
                f"--placements: '{name}' is none; examples: own:192, swap:512@10752, swap:192/32, last:4"
            )
        number = int(found[2])
        span = int(found[3] or number)
        start = int(found[4] or span)
        if start < span:
            raise InputError(
                f"--placements {name}: the near tokens begin at ID {start}, among the distant ones"
            )
        return cls(name, found[1], number, span, start)


@dataclass(frozen=True)
class NearContexts:
    """The near tokens of a chunk's targets."""

    places_BN: np.ndarray
    """int64; where they stand in the chunk."""
    query_rows_BQ: np.ndarray
    """int64; the near token right before each target."""

    @classmethod
    def of(cls, targets_T: np.ndarray, num_tokens: int, *, are_shared: bool) -> "NearContexts":
        """Exactly the N tokens before each target or, shared, the N tokens before the last of them."""
        ends_B = targets_T[-1:] if are_shared else targets_T
        targets_BQ = targets_T.reshape(len(ends_B), -1)
        # Targets 90 and 99 that share 20 tokens: places 79 to 98, query rows 10 and 19.
        return cls(ends_B[:, None] + np.arange(-num_tokens, 0), num_tokens - 1 + targets_BQ - ends_B[:, None])

    @property
    def targets_BQ(self) -> np.ndarray:
        """int64; the targets' places in the chunk."""
        return self.places_BN[:, :1] + self.query_rows_BQ + 1


def distant_ids(num_distant: int, span: int) -> np.ndarray:
    """Position IDs of distant tokens: int64, ascending, from 0."""
    # Six tokens over three IDs stand at 0, 0, 1, 1, 2, 2.
    return np.arange(num_distant) * span // num_distant


def read_distant(model: CausalLM, token_ids_D: np.ndarray, span: int) -> Prefix:
    """The distant tokens as later rows see them: read once for all near contexts, whatever their START."""
    ids_D = distant_ids(len(token_ids_D), span)
    # The one query is there for form; only keys and values are kept.
    rows = Rows(token_ids_D[None], ids_D[None], None, np.zeros((1, 1), dtype=np.int64))
    return model.read(*rows.on_device(model.device))[1]


@torch.inference_mode()
def near_predictions(
    model: CausalLM, chunk_L: np.ndarray, near: NearContexts, batching: Batching
) -> Predictions:
    """What the model predicts of each target from its near tokens alone, at the position IDs 0 to N - 1."""
    ids_1N = np.arange(near.places_BN.shape[1])[None]
    rows = Rows(chunk_L[near.places_BN], ids_1N, None, near.query_rows_BQ)
    parts = []
    for batch in batching.of_many(*near.places_BN.shape):
        hidden_BQD = hidden_states(model, rows.of_sequences(batch))
        parts.append(Predictions.of(model.logits(hidden_BQD.flatten(0, 1))))
    return Predictions.together(parts)


def measured_placement(
    model: CausalLM,
    chunk_L: np.ndarray,
    near: NearContexts,
    placement: Placement,
    batching: Batching,
    reference: Predictions,
    distant: Prefix | None = None,
) -> Measured:
    """Loss of each target under a placement, and KL from `reference` to the prediction: [T] each, nats.

    Args:
        reference: of `near_predictions`.
        distant: of `read_distant`; of `swap` only, in the place of the text's own distant tokens.
    """
    targets_BQ = near.targets_BQ
    if placement.kind == LAST:
        targets_T = targets_BQ.ravel()
        return measured_windows(model, chunk_L, targets_T, placement.num_distant, batching, reference)
    places_BN = near.places_BN
    ids_N = placement.near_start + np.arange(places_BN.shape[1])
    queries_BQ = near.query_rows_BQ
    if distant is None:
        # Own distant tokens differ between near contexts and run with each, ahead of the queries. A swap
        # is a prefix, which query rows do not count.
        places_BN = np.hstack([places_BN[:, :1] + np.arange(-placement.num_distant, 0), places_BN])
        ids_N = np.concatenate([distant_ids(placement.num_distant, placement.span), ids_N])
        queries_BQ = queries_BQ + placement.num_distant
    rows = Rows(chunk_L[places_BN], ids_N[None], None, queries_BQ)
    # `near_predictions` stacks its predictions in this order, context by context.
    index_BQ = np.arange(targets_BQ.size).reshape(targets_BQ.shape)
    contexts = Pass(rows, chunk_L[targets_BQ], index_BQ, distant)
    return measured_contexts(model, batching, reference, contexts).flat


def measured_placements(
    model: CausalLM,
    chunk_L: np.ndarray,
    near: NearContexts,
    placements: Sequence[Placement],
    batching: Batching,
    distant_of: Callable[[Placement], Mapping[str, Prefix]],
) -> Iterator[tuple[str, str | None, Measured, np.ndarray | None]]:
    """The near tokens alone, with the entropies, then each placement and distant text: its name, the text's
    ID, losses and divergences.

    `distant_of` gives, for a placement of kind `swap`, the distant texts as they were read, by document ID.
    """
    reference = near_predictions(model, chunk_L, near, batching)
    targets_T = near.targets_BQ.ravel()
    # The reference is this very prediction: its losses need no second pass, and its KL is 0.
    losses_T = -reference.log_probs_TV.cpu().numpy()[np.arange(len(targets_T)), chunk_L[targets_T]]
    yield NEAR, None, Measured(losses_T, np.zeros_like(losses_T)), reference.entropies_T
    for placement in placements:
        is_swap = placement.kind == SWAP
        for document_id, distant in distant_of(placement).items() if is_swap else [(None, None)]:
            found = measured_placement(model, chunk_L, near, placement, batching, reference, distant)
            yield placement.name, document_id, found, None
