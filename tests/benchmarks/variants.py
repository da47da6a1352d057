"""Ways of measuring the influence of every far token, one class each, all asked alike.

A variant measures the influence of chosen removed tokens (`influences`), and says which ones stand for the
whole chunk where that takes too long (`sample`). Every variant computes its influences from losses of its own
removals; the losses with nothing removed, which are the same one pass for all, are not timed unless the tool
insists on making them.

Shapes: B batch, R removed tokens, T targets, F far tokens, S rows, N (target, far token) pairs.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from accounting import ModelSizes, Work, work_of_pairs, work_of_suffixes, work_of_whole_passes
from matrix_product_peak import synchronize
from olmo.model import OLMo
from problem import SUBSTITUTE_ID, Problem

from pipeline.measuring.contexts import Batching, leave_each_out, own_context, read_everything
from pipeline.measuring.flags import ContextLengths
from pipeline.models.interface import CausalLM, Prefix, causal_visibility, target_losses
from pipeline.models.olmo import OLMoCausalLM


@dataclass(frozen=True)
class Influences:
    """Influences of (target, far token) pairs: nats, positive where the token helps."""

    target_index_N: np.ndarray
    position_N: np.ndarray
    influence_N: np.ndarray

    @classmethod
    def of_targets(
        cls, influence_TR: np.ndarray, removed_R: Sequence[int], lengths: ContextLengths
    ) -> "Influences":
        """Of all targets and removed tokens; those that are no far context of the target are left away."""
        positions_R = np.asarray(removed_R)
        is_far_TR = positions_R[None] < lengths.num_far_tokens_T[:, None]
        target_index_N, column_N = np.nonzero(is_far_TR)
        return cls(target_index_N, positions_R[column_N], influence_TR[is_far_TR])


class Variant(Protocol):
    """One way of measuring."""

    intervention: str
    """`remove`, or `substitute` by the token SUBSTITUTE_ID."""
    evaluations_beyond: int
    """Evaluations that a call makes beyond one a removed token (or pair)."""
    note: str
    """What was tuned, and to what."""

    def sample(self) -> list[int]:
        """The removed tokens of a timed run."""

    def influences(self, removed_R: Sequence[int]) -> Influences:
        """Measure them."""

    def num_evaluations(self) -> int:
        """Evaluations for the whole chunk, where a removed token (or pair) of the sample takes one."""

    def work(self, sizes: ModelSizes) -> Work:
        """Of the whole chunk."""


MOST_REMOVALS, NUM_BLOCKS, BLOCK = 600, 12, 8
"""Beyond the first, ours is timed on so many blocks of so many neighbouring removals."""


class SharedPrefixes:
    """Ours: `leave_each_out` as the measuring stages call it, on a whole chunk where not too long."""

    evaluations_beyond = 2
    """Reading the sequence costs about as much as two removals."""

    def __init__(self, problem: Problem, model: OLMo, intervention: str = "remove") -> None:
        num_positions = problem.lengths.long_context_length
        self._problem, self.intervention = problem, intervention
        self._model = OLMoCausalLM(model, num_positions)  # as the stages load it
        self._sequence = own_context(problem.chunk_L, problem.lengths)
        self._num_far = int(problem.lengths.num_far_tokens_T[-1])
        self.note = (
            f"{len(self.sample())} of {self._num_far} tokens, {problem.tokens_per_batch} tokens a batch"
        )

    def sample(self) -> list[int]:
        # A GPU runs whole chunks in seconds, and needs many removals at once to be busy.
        if self._num_far <= MOST_REMOVALS or self._model.device.type == "cuda":
            return list(range(self._num_far))
        # Neighbours share passes, so blocks of them stand for the whole; spread, since late ones cost less.
        starts = np.linspace(0, self._num_far - BLOCK, NUM_BLOCKS).round().astype(int)
        return (starts[:, None] + np.arange(BLOCK)).ravel().tolist()

    def influences(self, removed_R: Sequence[int]) -> Influences:
        substitutes = self.intervention == "substitute"
        rows_R = np.asarray(removed_R)
        left_out = leave_each_out(
            self._model,
            self._sequence,
            Batching(self._problem.tokens_per_batch),
            substitute_ids_L=np.full_like(self._problem.chunk_L, SUBSTITUTE_ID) if substitutes else None,
            removed_rows_R=rows_R,
        )
        return Influences.of_targets(left_out.influence_TF[:, rows_R], removed_R, self._problem.lengths)

    def num_evaluations(self) -> int:
        return self._num_far + self.evaluations_beyond

    def work(self, sizes: ModelSizes) -> Work:
        return work_of_suffixes(sizes, self._problem.lengths)


class ForwardPerPair:
    """A forward pass a pair, by stock OLMo with the edges into one token cut: the independent witness.

    One target a removed token: the sample goes through both evenly. Only the last row is projected.
    """

    intervention = "remove"
    evaluations_beyond = 0

    def __init__(self, problem: Problem, model: OLMo) -> None:
        self._problem, self._model = problem, model
        sequence = own_context(problem.chunk_L, problem.lengths)
        self._long_losses_T = read_everything(OLMoCausalLM(model), sequence).losses_T
        self.note = "sample of pairs, one pass each"

    def sample(self) -> list[int]:
        return spread(
            self._problem, max(2, self._problem.sample_tokens // self._problem.lengths.long_context_length)
        )

    def influences(self, removed_R: Sequence[int]) -> Influences:
        lengths = self._problem.lengths
        target_index_N = np.arange(len(removed_R)) % lengths.targets_per_chunk
        # The first targets' far contexts are the shortest: a token beyond goes with the last target.
        is_far_N = np.asarray(removed_R) < lengths.num_far_tokens_T[target_index_N]
        target_index_N = np.where(is_far_N, target_index_N, lengths.targets_per_chunk - 1)
        losses = [
            self._loss_without(int(lengths.targets_T[index]), removed)
            for index, removed in zip(target_index_N, removed_R, strict=True)
        ]
        influence_N = np.array(losses) - self._long_losses_T[target_index_N]
        return Influences(target_index_N, np.asarray(removed_R), influence_N)

    @torch.inference_mode()
    def _loss_without(self, target: int, removed: int) -> float:
        token_ids_1S = torch.as_tensor(self._problem.chunk_L[None, :target], device=self._model.device)
        visible_SS = without_edges_into(torch.tensor([removed], device=self._model.device), target)
        bias = torch.zeros(1, 1, target, target, device=self._model.device)
        bias.masked_fill_(~visible_SS[:, None], torch.finfo(bias.dtype).min)
        logits_V = self._model(token_ids_1S, attention_bias=bias, last_logits_only=True).logits[0, -1].float()
        return -logits_V.log_softmax(-1)[int(self._problem.chunk_L[target])].item()

    def num_evaluations(self) -> int:
        return int(self._problem.lengths.num_far_tokens_T.sum())

    def work(self, sizes: ModelSizes) -> Work:
        return work_of_pairs(sizes, self._problem.lengths)


class AllTargetsLoop:
    """One whole forward pass a removed token, for all targets, several at a time: what ours has to beat.

    It runs our model code, so that it gets every kernel ours gets, and projects at targets only. The token is
    masked or left out, whichever is faster, in the fastest of a few batch sizes; both are tried here and now.
    """

    intervention = "remove"
    evaluations_beyond = 0
    TOKENS_TRIED, TOKENS_TRIED_ON_A_GPU = (1, 2048, 8192), (8192, 32768)
    """A batch holds so many tokens, or one pass."""

    def __init__(self, problem: Problem, model: OLMo, last_layer_at_targets: bool = False) -> None:
        self._problem, self._last_layer_at_targets = problem, last_layer_at_targets
        lm = OLMoCausalLM(model, problem.lengths.long_context_length)
        self._model: CausalLM = lm if last_layer_at_targets else EveryRow(lm)
        self._num_rows = problem.lengths.long_context_length - 1
        self.long_losses_T = read_everything(lm, own_context(problem.chunk_L, problem.lengths)).losses_T
        self.batch_size, self._masks, self.note = 1, True, ""
        self._tune()

    def _tune(self) -> None:
        """Choose the fastest way, once, on this machine."""
        tried = self.TOKENS_TRIED_ON_A_GPU if self._model.device.type == "cuda" else self.TOKENS_TRIED
        batch_sizes = {max(1, num_tokens // self._num_rows) for num_tokens in tried}
        num_far = int(self._problem.lengths.num_far_tokens_T[-1])
        self.losses_without([0])  # the first call of a process is slower
        seconds = {}
        for masks in (True, False):
            for size in sorted(min(size, num_far) for size in batch_sizes):
                self._masks = masks
                synchronize(self._model.device)
                start = time.perf_counter()
                self.losses_without(list(range(size)))
                synchronize(self._model.device)
                seconds[masks, size] = (time.perf_counter() - start) / size
        self._masks, self.batch_size = min(seconds, key=seconds.__getitem__)
        self.note = f"tokens {'masked' if self._masks else 'left out'}, {self.batch_size} at a time"

    def sample(self) -> list[int]:
        wanted = max(2, self._problem.sample_tokens // self._num_rows)
        return spread(self._problem, -(-wanted // self.batch_size) * self.batch_size)

    def influences(self, removed_R: Sequence[int]) -> Influences:
        batches = [
            removed_R[start : start + self.batch_size] for start in range(0, len(removed_R), self.batch_size)
        ]
        losses_RT = np.concatenate([self.losses_without(batch).cpu().numpy() for batch in batches])
        return Influences.of_targets((losses_RT - self.long_losses_T).T, removed_R, self._problem.lengths)

    def losses_without(self, removed_R: Sequence[int]) -> torch.Tensor:
        """loss(t | long without i): float32 [R, T], nats."""
        device = self._model.device
        removed_R1 = torch.as_tensor(removed_R, device=device)[:, None]
        tokens_S = torch.as_tensor(self._problem.chunk_L[:-1], device=device)
        targets_T = torch.as_tensor(self._problem.lengths.targets_T, device=device)
        target_ids_RT = torch.as_tensor(self._problem.chunk_L, device=device)[targets_T].expand(
            len(removed_R), -1
        )
        queries_RT = (targets_T - 1).expand(len(removed_R), -1)
        if self._masks:
            positions_1S = torch.arange(self._num_rows, device=device)[None]
            visible = without_edges_into(removed_R1[:, 0], self._num_rows)
            tokens_RS = tokens_S.expand(len(removed_R), -1)
            return target_losses(self._model, tokens_RS, positions_1S, visible, queries_RT, target_ids_RT)
        kept_RS = torch.arange(self._num_rows - 1, device=device)
        kept_RS = kept_RS + (kept_RS >= removed_R1)
        return target_losses(self._model, tokens_S[kept_RS], kept_RS, None, queries_RT - 1, target_ids_RT)

    def num_evaluations(self) -> int:
        return int(self._problem.lengths.num_far_tokens_T[-1])

    def work(self, sizes: ModelSizes) -> Work:
        return work_of_whole_passes(sizes, self._problem.lengths, self._last_layer_at_targets)


class EveryRow:
    """A model that runs its last layer at every row, as a plain forward pass does."""

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self.vocabulary_size, self.device = model.vocabulary_size, model.device
        self.read, self.logits = model.read, model.logits

    def hidden_states(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSS: torch.Tensor | None,
        query_rows_BT: torch.Tensor,
        prefix: Prefix | None = None,
    ) -> torch.Tensor:
        """As `CausalLM.hidden_states`."""
        hidden_BSD = self._model.hidden_states(token_ids_BS, position_ids_BS, visible_BSS, None, prefix)
        return hidden_BSD.gather(1, query_rows_BT[..., None].expand(-1, -1, hidden_BSD.shape[-1]))


def without_edges_into(removed_R: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Causal visibility without one token, bool [R, S, S]; it still sees itself, lest it see nothing."""
    rows_S = torch.arange(num_rows, device=removed_R.device)
    hidden_RSS = (rows_S == removed_R[:, None])[:, None] & (rows_S[:, None] != rows_S)
    return causal_visibility(num_rows, removed_R.device) & ~hidden_RSS


def spread(problem: Problem, number: int) -> list[int]:
    """`number` far tokens of the last target, evenly spread, the first and the last among them."""
    num_far = int(problem.lengths.num_far_tokens_T[-1])
    return np.linspace(0, num_far - 1, min(number, num_far)).round().astype(int).tolist()
