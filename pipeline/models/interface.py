"""The one interface through which measuring code sees a language model, and its losses and divergences.

A model reads tokens at any position IDs, under any visibility, behind a prefix that it has read before. The
loss of a token is -ln p from log-sum-exp; how far a prediction moved from a reference is

    KL(reference || prediction) = sum_v p(v) (ln p(v) - ln q(v))

with both logarithms from log-softmax: 0 where the logits are the same, and small numbers are kept.

Shapes: B batch, S rows of a sequence, P rows of a prefix, K = S or P + S rows to look at, T query rows or
references, D width, V vocabulary, H heads, G key-value heads of width E, N any number of rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, pad

# Logits are the largest tensor of all; this bounds them to 64 MiB of float32 at a time, on a GPU to 512 MiB:
# it is faster the more it is told to do at once.
LOGITS_PER_BLOCK = 1 << 24
LOGITS_PER_BLOCK_ON_ACCELERATORS = 1 << 27
_LOGITS_COMPARED = 1 << 19
"""Logits of a block that a CPU compares at a time: in float32 they stay in its caches, 2 MiB."""

KeysAndValues = tuple[torch.Tensor, torch.Tensor]
"""One layer's, keys rotated by their position IDs: two [B, G, K, E]."""

OfHeads = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of a layer's queries and keys [H, S, E], rotated, keys repeated for heads that share them, and
the attention of T query rows to each row [H, T, S], which sums to 1 over the rows; float32. Its scores are
query times key over the square root of E."""

Watch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Looks at a layer's queries and keys, as `OfHeads` has them, and all rows' attention, of a batch of 1."""


def to_device(array: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """The array as a tensor on `device`, of the same dtype.

    To a GPU it goes from page-locked memory, behind what was queued there before: the host goes on at once,
    and torch keeps the copy until it has been read.
    """
    tensor = torch.as_tensor(array)
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    # Only from page-locked memory is a copy to the GPU asynchronous.
    return tensor.pin_memory().to(device, non_blocking=True)


class NotFiniteLossError(ArithmeticError):
    """A model gave a loss or a divergence (`what`) that is no number, or infinite; measuring code says where.

    The target's position is one of the position IDs that the model was given.
    """

    def __init__(self, what: str, target_position: int, loss: float) -> None:
        super().__init__(f"the {what} at position {target_position} is {loss}")
        self.what = what
        self.target_position = target_position
        self.loss = loss


@dataclass(frozen=True)
class Prefix:
    """What a model keeps of rows already read, layer by layer, to be looked at by rows that come after."""

    keys_and_values: tuple[KeysAndValues, ...]
    position_ids_B1P1: torch.Tensor
    """Position IDs of the rows, int64 [1 or B, 1, P, 1], for windows that slide."""

    @property
    def num_rows(self) -> int:
        """How many rows were read."""
        return self.position_ids_B1P1.shape[2]

    def _of_parts(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Prefix":
        layers = tuple((change(key), change(value)) for key, value in self.keys_and_values)
        return Prefix(layers, change(self.position_ids_B1P1))

    def first(self, num_rows: int) -> "Prefix":
        """The prefix of the first `num_rows` rows only; a view, not a copy."""
        return self._of_parts(lambda part: part[:, :, :num_rows])

    def before(self, later: "Prefix") -> "Prefix":
        """Put these rows, of one sequence, before those of `later`, of each of its sequences."""
        # A view: the shared rows are copied only where they are joined with each sequence's own.
        ours = self._of_parts(lambda part: part.expand(len(later.position_ids_B1P1), -1, -1, -1))
        layers = []
        for (key, value), (later_key, later_value) in zip(
            ours.keys_and_values, later.keys_and_values, strict=True
        ):
            layers.append((torch.cat((key, later_key), 2), torch.cat((value, later_value), 2)))
        ids_B1P1 = torch.cat((ours.position_ids_B1P1, later.position_ids_B1P1), dim=2)
        return Prefix(tuple(layers), ids_B1P1)


class ReadText(NamedTuple):
    """What rules that look inside a model read: one sequence, without a prefix."""

    token_ids_1S: torch.Tensor
    position_ids_1S: torch.Tensor
    visible_1SS: torch.Tensor | None
    """See `CausalLM.hidden_states`."""
    query_rows_T: torch.Tensor
    target_ids_T: torch.Tensor


class CausalLM(ABC):
    """A decoder-only model whose tokens can be given any position IDs and any visibility.

    A subclass says how its layers run; what is asked of all of them is here. It may be looked into, too:
    attention, and derivatives of losses.
    """

    _leading: Prefix | None = None
    """See `led_by`."""

    def __init__(self, model: nn.Module) -> None:
        self._model: nn.Module = model.eval().requires_grad_(False)  # it is measured, not trained

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """Token IDs run from 0 to this, exclusive."""

    @property
    def device(self) -> torch.device:
        """The device that inputs must be on, the embedding's; a device map may put other layers elsewhere."""
        return next(self._model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and computation."""
        return next(self._model.parameters()).dtype

    @property
    def num_parameters(self) -> int:
        """Numbers that training sets, embeddings included; shared ones count once."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    @abstractmethod
    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """What the model's first layer is given for each token, positions apart: [1, S, D]."""

    @abstractmethod
    def _run(
        self,
        tokens: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None,
        prefix: Prefix | None = None,
        *,
        keeps_rows: bool = False,
        watch: Watch | None = None,
    ) -> tuple[torch.Tensor, Prefix | None]:
        """Hidden states as `hidden_states` says, and the rows given as a prefix with `keeps_rows`.

        Embeddings [B, S, D] may be given as `tokens`, and numbers added to the scores as visibility, which is
        of all rows.
        """

    @abstractmethod
    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Vocabulary logits [..., V] of hidden states [..., D]."""

    def _run_led(
        self,
        tokens: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None,
        prefix: Prefix | None = None,
        **how: Any,
    ) -> tuple[torch.Tensor, Prefix | None]:
        """`_run` behind the leading tokens, visibility of all rows; the rows that are kept are the text's."""
        if visible_BSK is not None and visible_BSK.shape[1] < tokens.shape[1]:
            visible_BSK = visibility_of_all(visible_BSK, tokens.shape[1])
        if self._leading is not None:
            num_leading = self._leading.num_rows
            position_ids_BS = position_ids_BS + num_leading
            if visible_BSK is not None and visible_BSK.shape[-1] > tokens.shape[1]:  # of the prefix too
                visible_BSK = pad(visible_BSK, (num_leading, 0), value=visible_BSK.dtype == torch.bool)
            prefix = self._leading if prefix is None else self._leading.before(prefix)
        return self._run(tokens, position_ids_BS, visible_BSK, query_rows_BT, prefix, **how)

    def led_by(self, token_ids: Sequence[int]) -> "CausalLM":
        """The same model with these tokens, such as a BOS, before everything that it reads.

        A model that was trained with BOS expects it before whatever it reads: it belongs to the model, not to
        a context. So the tokens stand at the position IDs 0 … b - 1 in front of every pass, seen by all rows.
        Measuring code neither sees nor counts them: the position IDs that it gives are the text's, from 0, to
        which b is added, and what it gets back is of the text's rows only.
        """
        if not len(token_ids):
            return self
        # A shallow copy: both models share the weights.
        led = copy(self)
        ids_1b = torch.as_tensor(np.array([token_ids], dtype=np.int64), device=self.device)
        with torch.no_grad():  # not inference mode: derivatives are taken behind these rows
            positions_1b = torch.arange(len(token_ids), device=self.device)[None]
            _, led._leading = self._run(ids_1b, positions_1b, None, None, keeps_rows=True)
        return led

    @torch.inference_mode()
    def watch_heads(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor | None,
        of_layer: OfHeads,
    ) -> list[torch.Tensor]:
        """What `of_layer` keeps of each layer, of one sequence; arguments as in `hidden_states`."""
        kept: list[torch.Tensor] = []
        rows_T = slice(None) if query_rows_T is None else query_rows_T
        num_leading = 0 if self._leading is None else self._leading.num_rows

        def watch(*heads_and_weights: torch.Tensor) -> None:
            queries_HSE, keys_HKE, weights_HSK = (part[0].to(self.device) for part in heads_and_weights)
            # Leading rows are the model's own affair; what a text's row gives to BOS is not in the sum.
            own_HTS = weights_HSK[:, rows_T, num_leading:]
            kept.append(of_layer(queries_HSE, keys_HKE[:, num_leading:], own_HTS))

        self._run_led(token_ids_1S, position_ids_1S, visible_1SS, None, watch=watch)
        return kept

    @torch.inference_mode()
    def read(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_1T: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Prefix]:
        """`hidden_states` of one sequence, and what later rows need of it to read on."""
        hidden_1TD, prefix = self._run_led(
            token_ids_1S, position_ids_1S, visible_1SS, query_rows_1T, keeps_rows=True
        )
        assert prefix is not None
        return hidden_1TD, prefix

    @torch.inference_mode()
    def hidden_states(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None,
        prefix: Prefix | None = None,
    ) -> torch.Tensor:
        """Final hidden states of the query rows, after the last norm, before the projection: [B, T, D].

        Args:
            token_ids_BS: int64.
            position_ids_BS: int64, [B, S] or [1, S]; the positions RoPE rotates by.
            visible_BSK: bool, [B, S, K] or [1, S, K]; entry [b, q, k] is whether row q may look at row k. Of
                S columns it is about the rows given, and all of the prefix is seen, which is the cheaper; of
                P + S columns the rows of the prefix come first. None: a row sees the rows up to itself; so do
                the first rows where it is about the last only, among which the query rows then are.
            query_rows_BT: int64, [B, T] or [1, T]; the rows, counted without the prefix, whose states are
                wanted. None: all rows.
            prefix: rows already read, shared by the sequences of the batch, or of each its own.
        """
        return self._run_led(token_ids_BS, position_ids_BS, visible_BSK, query_rows_BT, prefix)[0]

    @torch.inference_mode()
    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Vocabulary logits of hidden states: [N, V]."""
        return self._project(hidden_ND)

    @torch.enable_grad()
    def gate_gradients(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """Derivative of each target's loss by the gate of each row, all gates being 1: float32 [T, S], nats.

        The gate of row i multiplies exp(score) of every attention edge into row i, in all layers and heads:
        1 leaves the model as it is, 0 removes the row. Its logarithm is added to the score; at gate 1 the
        derivative by the one is that by the other. One forward pass, and one backward a target.
        """
        if visible_1SS is None:
            visible_1SS = causal_visibility(token_ids_1S.shape[1], token_ids_1S.device)
        # ln 1: nothing is added at the point where the derivative is taken.
        log_gates_S = torch.zeros(token_ids_1S.shape[1], device=self.device, requires_grad=True)
        added_1SS = torch.where(visible_1SS, log_gates_S, torch.finfo(self.dtype).min).to(self.dtype)
        with sdpa_kernel(SDPBackend.MATH):  # not every fused kernel has a derivative by the mask
            hidden_1TD, _ = self._run_led(token_ids_1S, position_ids_1S, added_1SS, query_rows_T[None])
        logits_TV = self._project(hidden_1TD)[0].float()
        losses_T = cross_entropy(logits_TV, target_ids_T, reduction="none")
        # All targets share one graph, which the first backward pass would free.
        return torch.stack(
            [torch.autograd.grad(loss, log_gates_S, retain_graph=True)[0] for loss in losses_T]
        )


def num_positions_of(num_tokens: int, num_leading: int) -> int:
    """How many position IDs a chunk takes behind leading tokens.

    Its last token is predicted and never read, which makes room for one of these.
    """
    # Eight tokens behind one BOS: seven are read, at IDs 1 to 7, and BOS at 0: eight IDs.
    return num_tokens + max(0, num_leading - 1)


def causal_visibility(num_rows: int, device: torch.device) -> torch.Tensor:
    """Each row sees the rows up to itself: bool [1, S, S]."""
    return torch.ones(1, num_rows, num_rows, dtype=torch.bool, device=device).tril()


def visibility_of_all(visible_BWS: torch.Tensor, num_rows: int) -> torch.Tensor:
    """What is known of the last W rows, and of those before them that they see the rows up to themselves."""
    # Of five rows with W = 2, rows 0 to 2 are causal and rows 3 and 4 are as given.
    before_1NS = causal_visibility(num_rows, visible_BWS.device)[:, : num_rows - visible_BWS.shape[1]]
    return torch.cat((before_1NS.expand(len(visible_BWS), -1, -1), visible_BWS), dim=1)


def rows_of(rows: torch.Tensor, query_rows_BT: torch.Tensor | None) -> torch.Tensor:
    """The query rows of [B, S, D] or [B, 1, S, E], all where None; either batch may be 1, for all."""
    if query_rows_BT is None:
        return rows
    middle = rows.shape[1:-2]
    batch_size = max(rows.shape[0], query_rows_BT.shape[0])
    # `gather` wants an index of the result's shape, so each row number is repeated across the width.
    index = query_rows_BT.view(len(query_rows_BT), *(1 for _ in middle), -1, 1)
    index = index.expand(batch_size, *middle, -1, rows.shape[-1])
    return rows.expand(batch_size, *rows.shape[1:]).gather(-2, index)


def rows_per_block(model: CausalLM, device: torch.device) -> int:
    """How many rows are projected on the vocabulary at a time, at least one."""
    num_logits = LOGITS_PER_BLOCK if device.type == "cpu" else LOGITS_PER_BLOCK_ON_ACCELERATORS
    return max(1, num_logits // model.vocabulary_size)


def losses_of_hidden_states(
    model: CausalLM, hidden_BTD: torch.Tensor, target_ids_BT: torch.Tensor
) -> torch.Tensor:
    """-ln p of target tokens from the states that predict them: float32 [B, T], nats.

    The vocabulary projection runs at these T rows only, block by block. Log-sum-exp minus the target's logit
    is the loss; taking the softmax first would lose it to rounding where the model is sure.
    """
    num_rows = rows_per_block(model, hidden_BTD.device)
    losses = []
    blocks = (part.split(num_rows) for part in (hidden_BTD.flatten(0, 1), target_ids_BT.reshape(-1)))
    for hidden_ND, target_ids_N in zip(*blocks, strict=True):
        # Before log-sum-exp: in bfloat16 a loss of 3 nats would be rounded to steps of 1/64.
        logits_NV = model.logits(hidden_ND).float()
        losses.append(logits_NV.logsumexp(-1) - logits_NV.gather(-1, target_ids_N[:, None])[:, 0])
    return torch.cat(losses).reshape(target_ids_BT.shape)


def refuse_not_finite(
    losses_BT: torch.Tensor, position_ids_BS: torch.Tensor, query_rows_BT: torch.Tensor, what: str = "loss"
) -> None:
    """Raise `NotFiniteLossError` for the first loss that is no finite number; a mean would hide it."""
    not_finite = (~losses_BT.isfinite()).nonzero().tolist()
    if not_finite:
        first, target = not_finite[0]
        query_row = query_rows_BT.expand(losses_BT.shape)[first, target]
        position = position_ids_BS.expand(len(losses_BT), -1)[first, query_row]
        # A row predicts the token after it.
        raise NotFiniteLossError(what, int(position) + 1, float(losses_BT[first, target]))


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model predicts at T places, as whole distributions; float32."""

    log_probs_TV: torch.Tensor
    probs_TV: torch.Tensor

    @classmethod
    def of(cls, logits_TV: torch.Tensor) -> "Predictions":
        """The predictions of these logits."""
        log_probs_TV = logits_TV.log_softmax(-1, dtype=torch.float32)
        return cls(log_probs_TV, log_probs_TV.exp())

    @classmethod
    def together(cls, parts: Sequence["Predictions"]) -> "Predictions":
        """Several, one after another."""
        log_probs_TV = torch.cat([part.log_probs_TV for part in parts])
        return cls(log_probs_TV, torch.cat([part.probs_TV for part in parts]))

    def at(self, places: slice) -> "Predictions":
        """Predictions at some of the places."""
        return Predictions(self.log_probs_TV[places], self.probs_TV[places])

    @property
    def entropies_T(self) -> np.ndarray:
        """Entropy of each: float32 [T], nats."""
        # A probability of 0 adds nothing, where 0 times its logarithm would be no number.
        falls_TV = self.probs_TV * self.log_probs_TV.nan_to_num(neginf=0)
        entropies: np.ndarray = -falls_TV.sum(-1).cpu().numpy()
        return entropies

    def divergences(self, log_probs_NV: torch.Tensor, index_N: torch.Tensor) -> torch.Tensor:
        """KL(reference || prediction) of N predictions, float32, each with reference `index_N`: [N], nats."""
        # Indexing by a tensor copies, so the in-place steps leave the references alone.
        falls_NV = self.log_probs_TV[index_N].sub_(log_probs_NV)
        return falls_NV.mul_(self.probs_TV[index_N]).sum(-1).clamp(min=0)  # rounding may take it below


def losses_and_divergences(
    model: CausalLM,
    hidden_BTD: torch.Tensor,
    target_ids_BT: torch.Tensor,
    reference: Predictions,
    reference_index_BT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-ln p of target tokens, and KL(reference || prediction): two float32 [B, T], nats.

    The divergence asks how far a prediction moved, not whether the target became likelier: it never sees the
    target. Predictions are compared block by block, so there is no [B, T, V] tensor. Whether the values are
    finite is not looked at (`refuse_not_finite` does): a GPU goes on, and nothing waits for it.

    The states are of the rows that predict the targets; the caller owns the shift by one. The place of each
    target's reference is `reference_index_BT`, int64; None: target t's is place t.
    """
    shape = target_ids_BT.shape
    device = hidden_BTD.device
    if reference_index_BT is None:
        reference_index_BT = torch.arange(shape[1])
    index_N = to_device(reference_index_BT.expand(shape).reshape(-1), device)
    num_rows = num_compared = rows_per_block(model, device)
    if device.type == "cpu":
        # A large product is fast; passes over its result are, while they stay in the caches. So blocks within
        # blocks, on a CPU.
        num_compared = max(1, _LOGITS_COMPARED // model.vocabulary_size)
    losses = []
    divergences = []
    blocks = (part.split(num_rows) for part in (hidden_BTD.flatten(0, 1), target_ids_BT.reshape(-1), index_N))
    for hidden_ND, *of_block in zip(*blocks, strict=True):
        parts = (part.split(num_compared) for part in (model.logits(hidden_ND), *of_block))
        for logits_NV, target_ids_N, references_N in zip(*parts, strict=True):
            log_probs_NV = logits_NV.log_softmax(-1, dtype=torch.float32)
            losses.append(-log_probs_NV.gather(-1, target_ids_N[:, None])[:, 0])
            divergences.append(reference.divergences(log_probs_NV, references_N))
    return torch.cat(losses).reshape(shape), torch.cat(divergences).reshape(shape)
