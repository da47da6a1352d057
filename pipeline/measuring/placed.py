"""Near tokens behind distant ones whose number, text and position IDs are chosen freely.

In a transformer with relative positions two things change with length: how many tokens are attended to, and
how far away they are. A `Placement` sets the two apart: the same near tokens, behind distant tokens of the
same text or of another, few or many, at distances seen in training or not.

Shapes: L chunk, B near contexts of N tokens, D distant tokens; T targets, Q in each near context (T = B Q).
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
