"""Near tokens behind distant ones whose number, text and position IDs are chosen freely.

In a transformer with relative positions two things change with length: how many tokens are attended to, and
how far away they are. A `Placement` sets the two apart: the same near tokens, behind distant tokens of the
same text or of another, few or many, at distances seen in training or not.

Shapes: L chunk, T targets, B near contexts of N tokens with Q targets each (T = B Q), D distant tokens.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.cli import InputError
from pipeline.measuring.contexts import (
    Batching,
    Measured,
    PassQueue,
    Rows,
    hidden_states,
    measured_windows,
)
from pipeline.models.interface import CausalLM, Predictions, Prefix

OWN, SWAP, LAST, NEAR = "own", "swap", "last", "near"
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

    @property
    def distant_ids_D(self) -> np.ndarray:
        """Position IDs of the distant tokens: int64, ascending, from 0."""
        return np.arange(self.num_distant) * self.span // self.num_distant


@dataclass(frozen=True)
class NearContexts:
    """The near tokens of a chunk's targets."""

    starts_B: np.ndarray
    """int64; where each begins in the chunk."""
    num_tokens: int
    """N."""
    query_rows_BQ: np.ndarray
    """int64; the near token right before each target."""

    @classmethod
    def of(cls, targets_T: np.ndarray, num_tokens: int, *, are_shared: bool) -> "NearContexts":
        """Exactly the N tokens before each target or, shared, the N tokens before the last of them."""
        if are_shared:
            start = int(targets_T[-1]) - num_tokens
            return cls(np.array([start]), num_tokens, (targets_T - 1 - start)[None])
        return cls(targets_T - num_tokens, num_tokens, np.full((len(targets_T), 1), num_tokens - 1))

    @property
    def targets_BQ(self) -> np.ndarray:
        """int64; the targets' places in the chunk."""
        return self.starts_B[:, None] + self.query_rows_BQ + 1


def read_distant(model: CausalLM, token_ids_D: np.ndarray, placement: Placement) -> Prefix:
    """The distant tokens as later rows see them: read once for all near contexts, whatever their START."""
    rows = Rows(token_ids_D[None], placement.distant_ids_D[None], None, np.zeros((1, 1), dtype=np.int64))
    return model.read(*rows.on_device(model.device))[1]


@torch.inference_mode()
def near_predictions(
    model: CausalLM, chunk_L: np.ndarray, near: NearContexts, batching: Batching
) -> Predictions:
    """What the model predicts of each target from its near tokens alone, at the position IDs 0 to N - 1."""
    ids_1N = np.arange(near.num_tokens)[None]
    parts = []
    for batch in batching.of_many(len(near.starts_B), near.num_tokens):
        tokens_BN = chunk_L[near.starts_B[batch, None] + ids_1N]
        rows = Rows(tokens_BN, ids_1N, None, near.query_rows_BQ[batch])
        hidden_BQD = hidden_states(model, batching, rows)
        parts.append(Predictions.of(model.logits(hidden_BQD.flatten(0, 1))))
    return Predictions.together(parts)


def measured_placement(
    model: CausalLM, chunk_L: np.ndarray, near: NearContexts, placement: Placement, batching: Batching,
    reference: Predictions, distant: Prefix | None = None,
) -> Measured:  # fmt: skip
    """Loss of each target under a placement, and KL from `reference` to the prediction: [T] each, nats.

    Args:
        reference: of `near_predictions`.
        distant: of `read_distant`; of `swap` only, in the place of the text's own distant tokens.
    """
    targets_BQ = near.targets_BQ
    if placement.kind == LAST:
        targets_T = targets_BQ.ravel()
        return measured_windows(model, chunk_L, targets_T, placement.num_distant, batching, reference)
    places_N, ids_N = np.arange(near.num_tokens), placement.near_start + np.arange(near.num_tokens)
    num_before = 0
    if distant is None:
        num_before = placement.num_distant
        places_N = np.arange(-num_before, near.num_tokens)
        ids_N = np.concatenate([placement.distant_ids_D, ids_N])
    index_BQ = np.arange(targets_BQ.size).reshape(targets_BQ.shape)
    queue = PassQueue(model, batching, reference)
    for batch in batching.of_many(len(targets_BQ), len(ids_N)):
        tokens_BN = chunk_L[near.starts_B[batch, None] + places_N]
        rows = Rows(tokens_BN, ids_N[None], None, near.query_rows_BQ[batch] + num_before)
        queue.run(rows, chunk_L[targets_BQ[batch]], index_BQ[batch], distant)
    return Measured(*(np.concatenate([part.ravel() for part in values]) for values in queue.read()))


DistantTexts = dict[str, np.ndarray]
"""Document ID -> token IDs, int64."""


def placement_columns(
    model: CausalLM, chunk_L: np.ndarray, near: NearContexts, placements: Sequence[Placement],
    batching: Batching, distant_of: Callable[[Placement], dict[str, Prefix]],
) -> dict[str, list[object]]:  # fmt: skip
    """Columns of `length_interference` but for the target's: a row a target, placement and distant text.

    `distant_of` gives, for a placement of kind `swap`, the distant texts as they were read, by document ID.
    """
    reference = near_predictions(model, chunk_L, near, batching)
    targets_T = near.targets_BQ.ravel()
    losses_T = -reference.log_probs_TV.cpu().numpy()[np.arange(len(targets_T)), chunk_L[targets_T]]
    none_T: list[object] = [None] * len(targets_T)
    columns: dict[str, list[object]] = {
        "target": targets_T.tolist(), "placement": [NEAR] * len(targets_T),
        "distant_document_id": list(none_T), "loss": losses_T.tolist(),
        "divergence": [0.0] * len(targets_T), "entropy": reference.entropies_T.tolist(),
    }  # fmt: skip
    for placement in placements:
        is_swap = placement.kind == SWAP
        for document_id, distant in distant_of(placement).items() if is_swap else [(None, None)]:
            found = measured_placement(model, chunk_L, near, placement, batching, reference, distant)
            columns["target"] += targets_T.tolist()
            columns["placement"] += [placement.name] * len(targets_T)
            columns["distant_document_id"] += [document_id] * len(targets_T)
            columns["loss"] += found.losses.tolist()
            columns["divergence"] += found.divergences.tolist()
            columns["entropy"] += none_T
    return columns
