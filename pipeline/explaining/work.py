"""How much work an explanation is, counted before it begins and while it goes on.

The very code that measures is run once with a model that computes nothing and counts what it is asked: so the
estimate is of what will be run, whatever the rules. Seconds are the counts times the speed of two short
passes of the real model.

Shapes: B batch, S rows, T query rows, N any number of rows, V vocabulary, D width.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.models.causal_lm import CausalLM, Prefix
from pipeline.models.divergence import Predictions
from pipeline.models.inspectable_lm import InspectableLM

_TOKENS_TIMED = 1024
_ROWS_TIMED = 64
_BACKWARD = 2
"""Passes forward that one backward takes as long as."""


@dataclass(frozen=True)
class Work:
    """What a model is asked to compute."""

    num_tokens: int = 0
    """Rows through all layers."""
    num_projections: int = 0
    """Rows projected on the vocabulary, and compared with a prediction."""

    def __add__(self, other: "Work") -> "Work":
        return Work(self.num_tokens + other.num_tokens, self.num_projections + other.num_projections)


@dataclass(frozen=True)
class Speed:
    """Of one model on one device."""

    token_seconds: float
    projection_seconds: float

    def seconds(self, work: Work) -> float:
        """What `work` takes."""
        return work.num_tokens * self.token_seconds + work.num_projections * self.projection_seconds


class WatchedLM:
    """A model that tells of every pass what it was, once it is done. Its numbers are the model's own."""

    def __init__(self, model: CausalLM, done: Callable[[Work], None]) -> None:
        self._done = done
        self.vocabulary_size, self.num_parameters = model.vocabulary_size, model.num_parameters
        self.device, self.sequence_bytes = model.device, model.sequence_bytes
        self.read, self.hidden_states = (
            self._told(read, lambda token_ids_BS: Work(num_tokens=token_ids_BS.numel()))
            for read in (model.read, model.hidden_states)
        )
        self.logits = self._told(model.logits, lambda hidden_ND: Work(num_projections=len(hidden_ND)))
        if isinstance(model, InspectableLM):  # else rules that look inside are to find that it is not
            self.embed = model.embed
            self.watch_attention = self._watched(model.watch_attention, 0)
            self.gate_gradients = self._watched(model.gate_gradients, _BACKWARD)
            self.losses_of_embeddings = self._watched(model.losses_of_embeddings, 1)

    def _told(self, compute: Callable[..., Any], work: Callable[[torch.Tensor], Work]) -> Callable[..., Any]:
        """The same, told of: the work that the first argument makes."""

        def told(rows: torch.Tensor, *more: Any, **named: Any) -> Any:
            answer = compute(rows, *more, **named)
            self._done(work(rows))
            return answer

        return told

    def _watched(self, inspect: Callable[..., Any], num_backward: int) -> Callable[..., Any]:
        """The same, told of: rows forward, and as often as that for each query row backward."""

        def watched(
            rows_BS: torch.Tensor,
            position_ids_1S: torch.Tensor,
            visible_1SS: torch.Tensor | None,
            query_rows_T: torch.Tensor | None,
            *more: Any,
        ) -> Any:
            answer = inspect(rows_BS, position_ids_1S, visible_1SS, query_rows_T, *more)
            num_queries = 0 if query_rows_T is None else len(query_rows_T)
            num_rows = rows_BS.shape[0] * rows_BS.shape[1]
            self._done(Work(num_tokens=num_rows * (1 + num_backward * num_queries)))
            return answer

        return watched


class UncomputedLM:
    """In the place of a model: answers at once, at random, so that rules choose as differently as they may.

    Its vocabulary is 0 and 1, its width 1.

    `CausalLM` and `InspectableLM`.
    """

    vocabulary_size, num_parameters, device = 2, 0, torch.device("cpu")

    def __init__(self, model: CausalLM) -> None:
        self.sequence_bytes = model.sequence_bytes  # so that batches are the model's
        self._prefix = Prefix(())
        self._generator = torch.Generator().manual_seed(0)

    def read(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_1T: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Prefix]:
        """See `CausalLM`."""
        return self.hidden_states(token_ids_1S, position_ids_1S, visible_1SS, query_rows_1T), self._prefix

    def hidden_states(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None,
        prefix: Prefix | None = None,
    ) -> torch.Tensor:
        """See `CausalLM`."""
        num_queries = token_ids_BS.shape[1] if query_rows_BT is None else query_rows_BT.shape[1]
        return torch.zeros(len(token_ids_BS), num_queries, 1)

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """See `CausalLM`."""
        return self._drawn(len(hidden_ND), self.vocabulary_size)

    def watch_attention(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor | None,
        note: Callable[[torch.Tensor], None],
    ) -> None:
        """See `InspectableLM`; one head of one layer."""
        num_rows = token_ids_1S.shape[1]
        num_queries = num_rows if query_rows_T is None else len(query_rows_T)
        note(self._drawn(num_queries, num_rows).softmax(-1)[None])

    def gate_gradients(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """See `InspectableLM`."""
        return self._drawn(len(query_rows_T), token_ids_1S.shape[1])

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """See `InspectableLM`."""
        return self._drawn(*token_ids_1S.shape)[..., None]

    def losses_of_embeddings(
        self,
        embedded_BSD: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """See `InspectableLM`."""
        weights_ST = self._drawn(embedded_BSD.shape[1], len(query_rows_T))
        return embedded_BSD[..., 0] @ weights_ST

    def _drawn(self, num_rows: int, num_columns: int) -> torch.Tensor:
        return torch.rand(num_rows, num_columns, generator=self._generator)


def measured_speed(model: CausalLM, num_rows: int) -> Speed:
    """The model's speed with sequences of so many rows, by two short passes."""
    batch_size = max(1, _TOKENS_TIMED // num_rows)
    tokens_BS = torch.zeros(batch_size, num_rows, dtype=torch.int64, device=model.device)
    positions_1S = torch.arange(num_rows, device=model.device)[None]

    def pass_through() -> torch.Tensor:
        return model.hidden_states(tokens_BS, positions_1S, None, None)

    hidden_BSD = pass_through()  # the first also sets libraries up
    trunk_seconds = _seconds(pass_through, model.device)
    hidden_ND = hidden_BSD.flatten(0, 1)[:_ROWS_TIMED]

    reference, index_N = Predictions.of(model, hidden_ND[:1]), torch.zeros(len(hidden_ND), dtype=torch.int64)

    def project() -> torch.Tensor:
        log_probs_NV = model.logits(hidden_ND).log_softmax(-1, dtype=torch.float32)
        return reference.divergences(log_probs_NV, index_N)

    project()
    return Speed(trunk_seconds / tokens_BS.numel(), _seconds(project, model.device) / len(hidden_ND))


def _seconds(compute: Callable[[], torch.Tensor], device: torch.device) -> float:
    started = time.perf_counter()
    compute()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
