"""The one interface through which measuring code sees a language model, and its losses and divergences.

A model reads tokens at any position IDs, under any visibility, behind a prefix that it has read before. The
loss of a token is -ln p; how far a prediction moved from a reference is

    KL(reference || prediction) = sum_v p(v) (ln p(v) - ln q(v))

with all logarithms from log-softmax: 0 if the logits are the same, and small numbers are kept.

Shapes: B batch, S rows of a sequence, P rows of a prefix, K = S or P + S rows to look at, T query rows or
references, D width, V vocabulary, H heads, G key-value heads of width E, N any number of rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, pad

# Logits are the largest tensor of all; this bounds them to 64 MiB of float32 at a time, on a GPU to 512 MiB:
# it is faster the more it is told to do at once.
LOGITS_PER_BLOCK = 1 << 24
LOGITS_PER_BLOCK_ON_GPU = 1 << 27
_LOGITS_IN_CACHES = 1 << 19
"""Logits that a CPU's caches hold in float32: 2 MiB."""

KeysAndValues = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer, keys rotated by their position IDs: two [B, G, K, E]."""

Watch = Callable[[torch.Tensor], None]
"""Looks at a layer's attention, float32 [B, H, S, K]: a row sums to 1, or to less beside a sink."""


ScoreChange = Callable[[int, slice, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, which rows of the pass, their scores [B, H, R, K], visibility, queries [B, H, R, E] times the
scale, keys [B, H, K, E]), float32 -> scores, before softcap and visibility. Keys are the first K that there
are, up to the last row's own if nothing else is said. No fused kernel shows scores."""


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


@dataclass(eq=False)
class NotFiniteLossError(ArithmeticError):
    """A model gave a loss or a divergence that is no number, or infinite; measuring code says where."""

    what: str
    target_position: int
    """One of the position IDs that the model was given."""
    loss: float


@dataclass(frozen=True)
class Prefix:
    """What a model keeps of rows already read, layer by layer, to be looked at by rows that come after."""

    keys_and_values: tuple[KeysAndValues, ...]
    position_ids_BP: torch.Tensor
    """Position IDs of the rows, int64, for windows that slide."""
    num_leading: int = 0
    """Rows of leading tokens (see `CausalLM.led_by`), the first ones, which nobody counts."""

    @property
    def num_rows(self) -> int:
        """How many rows were read."""
        return self.position_ids_BP.shape[1] - self.num_leading

    def first(self, num_rows: int) -> "Prefix":
        """The prefix of the first `num_rows` rows only; a view, not a copy."""
        stop = self.num_leading + num_rows
        layers = tuple((key[:, :, :stop], value[:, :, :stop]) for key, value in self.keys_and_values)
        return Prefix(layers, self.position_ids_BP[:, :stop], self.num_leading)

    def rows(self, places: np.ndarray) -> "Prefix":
        """The prefix of some rows only, ascending; a copy."""
        stop = self.num_leading
        index = to_device(np.append(np.arange(stop), stop + places), self.position_ids_BP.device)
        layers = tuple(
            (key[:, :, index.to(key.device)], value[:, :, index.to(key.device)])
            for key, value in self.keys_and_values
        )
        return Prefix(layers, self.position_ids_BP[:, index], stop)

    def beside(self, other: "Prefix") -> "Prefix":
        """These rows, and behind them another prefix's but for its leading ones, which are the same."""
        skipped = other.num_leading
        layers = tuple(
            joined(own, (key[:, :, skipped:], value[:, :, skipped:]))
            for own, (key, value) in zip(self.keys_and_values, other.keys_and_values, strict=True)
        )
        both_ids = self.position_ids_BP, other.position_ids_BP[:, skipped:]
        return Prefix(layers, torch.cat(both_ids, dim=1), self.num_leading)


def joined(past: KeysAndValues | None, own: KeysAndValues) -> KeysAndValues:
    """Keys and values of a layer's prefix, which may be shared by the batch, and of the rows behind it."""
    if past is None:
        return own
    # A view: shared rows are copied only where they are joined with each sequence's own.
    past_key, past_value = (part.expand(len(own[0]), -1, -1, -1) for part in past)
    return torch.cat((past_key, own[0]), dim=2), torch.cat((past_value, own[1]), dim=2)


@dataclass
class Running:
    """What attention must know of the forward pass that is running, and the keys and values that it reads."""

    prefix: Prefix
    """An empty one, without rows and layers, if nothing was read before."""
    position_ids_BK: torch.Tensor
    visible_B1SK: torch.Tensor | None
    """Visibility of all rows, [B or 1, 1, S, K] (`CausalLM.hidden_states`); or numbers added to scores."""
    watch: Watch | None
    read: list[KeysAndValues] | None
    """Keys and values of all rows so far, layer by layer; None if they are not kept."""
    slopes_H: torch.Tensor | None = None
    """ALiBi's slope of each head, float32."""
    change: ScoreChange | None = None


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
    num_rows_run = 0
    """Forward tokens until now."""
    before_pass: Callable[[int], None] | None = None
    """Is told of the forward tokens of each pass before it runs; an exception ends the work."""

    def __init__(self, model: nn.Module) -> None:
        self._model: nn.Module = model.eval().requires_grad_(False)  # it is measured, not trained

    @property
    def end_token_ids(self) -> frozenset[int]:
        """What ends a text that the model writes, by its configurations: often that of a turn, too."""
        config = getattr(self._model, "config", None)
        configs = [
            config,
            getattr(config, "text_config", None),
            getattr(self._model, "generation_config", None),
        ]
        given = [getattr(one, "eos_token_id", None) for one in configs]
        # Each is None, an ID, or several.
        return frozenset(int(one) for ids in given if ids is not None for one in np.atleast_1d(ids))

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """Token IDs run from 0 to this, exclusive."""

    @property
    def sees_all(self) -> bool:
        """Whether some layer shows every row all rows before it, however far away they are."""
        return True

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
    def _states(
        self,
        tokens: torch.Tensor,
        position_ids_BS: torch.Tensor,
        query_rows_BT: torch.Tensor | None,
        running: Running,
    ) -> torch.Tensor:
        """Final hidden states of the query rows, [B, T, D], on `device`; each layer calls `attend`."""

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Vocabulary logits [..., V] of hidden states [..., D]."""

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
    ) -> tuple[torch.Tensor, Prefix]:
        """Hidden states as `hidden_states` says, and all rows so far as a prefix, empty without `keeps_rows`.

        Embeddings [B, S, D] may be given as `tokens`, and numbers added to the scores as visibility.
        """
        if visible_BSK is not None and visible_BSK.shape[1] < tokens.shape[1]:
            visible_BSK = visibility_of_all(visible_BSK, tokens.shape[1])
        prefix = prefix or self._leading or Prefix((), position_ids_BS[:, :0])
        position_ids_BS = position_ids_BS + prefix.num_leading
        batch_size = max(len(prefix.position_ids_BP), len(position_ids_BS))
        both_ids = prefix.position_ids_BP, position_ids_BS
        running = Running(
            prefix,
            position_ids_BK=torch.cat([ids.expand(batch_size, -1) for ids in both_ids], dim=1),
            visible_B1SK=None if visible_BSK is None else visible_BSK[:, None],
            watch=watch,
            read=[] if keeps_rows else None,
        )
        num_rows = tokens.shape[0] * tokens.shape[1]
        if self.before_pass is not None:
            self.before_pass(num_rows)
        self.num_rows_run += num_rows
        hidden_BTD = self._states(tokens, position_ids_BS, query_rows_BT, running)
        return hidden_BTD, Prefix(tuple(running.read or ()), running.position_ids_BK, prefix.num_leading)

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
        positions_1b = torch.arange(len(token_ids), device=self.device)[None]
        with torch.no_grad():  # not inference mode: derivatives are taken behind these rows
            _, leading = self._run(ids_1b, positions_1b, None, None, keeps_rows=True)
        led._leading = replace(leading, num_leading=len(token_ids))
        return led

    @torch.inference_mode()
    def watch_heads(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        of_layer: Callable[[torch.Tensor], torch.Tensor],
    ) -> list[torch.Tensor]:
        """What `of_layer` keeps of each layer's attention in one sequence; arguments as in `hidden_states`.

        It is given the attention of each row to each row, float32 [H, S, S], which sums to 1 over the rows
        that are looked at, but for what goes to leading tokens and attention sinks.
        """
        kept: list[torch.Tensor] = []

        def watch(weights_1HSK: torch.Tensor) -> None:
            # Leading rows are the model's own affair; what a text's row gives to BOS is not in the sum.
            kept.append(of_layer(weights_1HSK[0, :, :, -token_ids_1S.shape[1] :].to(self.device)))

        self._run(token_ids_1S, position_ids_1S, visible_1SS, None, watch=watch)
        return kept

    @torch.inference_mode()
    def read(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SK: torch.Tensor | None,
        query_rows_1T: torch.Tensor | None,
        prefix: Prefix | None = None,
    ) -> tuple[torch.Tensor, Prefix]:
        """`hidden_states` of one sequence, and what later rows need of it, and of its prefix, to read on."""
        return self._run(token_ids_1S, position_ids_1S, visible_1SK, query_rows_1T, prefix, keeps_rows=True)

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
                the first rows if it is about the last only, among which the query rows then are.
            query_rows_BT: int64, [B, T] or [1, T]; the rows, counted without the prefix, whose states are
                wanted. None: all rows.
            prefix: rows already read, shared by the sequences of the batch, or of each its own.
        """
        return self._run(token_ids_BS, position_ids_BS, visible_BSK, query_rows_BT, prefix)[0]

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
        derivative by the one is that by the other. One forward pass, and one backward pass per target.
        """
        num_rows = token_ids_1S.shape[1]
        visible_1SS = visibility_with_prefix(visible_1SS, num_rows, num_rows, self.device)
        # ln 1: nothing is added at the point where the derivative is taken.
        log_gates_S = torch.zeros(num_rows, device=self.device, requires_grad=True)
        added_1SS = torch.where(visible_1SS, log_gates_S, torch.finfo(self.dtype).min).to(self.dtype)
        with sdpa_kernel(SDPBackend.MATH):  # not every fused kernel has a derivative by the mask
            hidden_1TD, _ = self._run(token_ids_1S, position_ids_1S, added_1SS, query_rows_T[None])
        logits_TV = self.logits(hidden_1TD)[0].float()
        losses_T = cross_entropy(logits_TV, target_ids_T, reduction="none")
        # All targets share one graph, which the first backward pass would free.
        return torch.stack(
            [torch.autograd.grad(loss, log_gates_S, retain_graph=True)[0] for loss in losses_T]
        )


def causal_visibility(num_rows: int, device: torch.device) -> torch.Tensor:
    """Each row sees the rows up to itself: bool [1, S, S]."""
    return torch.ones(1, num_rows, num_rows, dtype=torch.bool, device=device).tril()


def visibility_of_all(visible_BWS: torch.Tensor, num_rows: int) -> torch.Tensor:
    """What is known of the last W rows, and of those before them that they see the rows up to themselves."""
    # Of five rows with W = 2, rows 0 to 2 are causal and rows 3 and 4 are as given.
    before_1NS = causal_visibility(num_rows, visible_BWS.device)[:, : num_rows - visible_BWS.shape[1]]
    return torch.cat((before_1NS.expand(len(visible_BWS), -1, -1), visible_BWS), dim=1)


def visibility_with_prefix(
    visible: torch.Tensor | None, num_rows: int, num_keys: int, device: torch.device
) -> torch.Tensor:
    """Visibility [..., S, K] of the whole prefix, whose first rows are seen if nothing is said of them."""
    if visible is None:
        visible = causal_visibility(num_rows, device)
    # True, or 0 added to the scores. Two rows behind a prefix of two see 1 1 1 0 and 1 1 1 1.
    return pad(visible, (num_keys - visible.shape[-1], 0), value=visible.dtype == torch.bool)


def rows_of(rows: torch.Tensor, query_rows_BT: torch.Tensor | None) -> torch.Tensor:
    """The query rows of [B, S, D] or [B, H, S, E], all if None; either batch may be 1, for all."""
    if query_rows_BT is None:
        return rows
    index_BT1 = query_rows_BT[..., None]
    return rows.take_along_dim(index_BT1 if rows.ndim == 3 else index_BT1[:, None], dim=-2)


def _in_blocks(
    model: CausalLM, hidden_BTD: torch.Tensor, *of_rows_N: torch.Tensor
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Logits [N, V] of some rows at a time, and what else belongs to these rows; so there is no [B, T, V]."""
    is_on_cpu = hidden_BTD.device.type == "cpu"
    num_rows = max(1, (LOGITS_PER_BLOCK if is_on_cpu else LOGITS_PER_BLOCK_ON_GPU) // model.vocabulary_size)
    # A large product is fast; passes over its result are, while they stay in the caches. So blocks within
    # blocks, on a CPU.
    num_at_once = max(1, _LOGITS_IN_CACHES // model.vocabulary_size) if is_on_cpu else num_rows
    blocks = (part.split(num_rows) for part in (hidden_BTD.flatten(0, 1), *of_rows_N))
    for hidden_ND, *of_block in zip(*blocks, strict=True):
        parts = (part.split(num_at_once) for part in (model.logits(hidden_ND), *of_block))
        yield from zip(*parts, strict=True)


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


def target_losses(log_probs_TV: torch.Tensor, target_ids_T: torch.Tensor) -> torch.Tensor:
    """-ln p of target tokens, from the logarithms of all probabilities: [T], nats."""
    return -log_probs_TV.gather(-1, target_ids_T[:, None])[:, 0]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model predicts at T places, as whole distributions; float32."""

    log_probs_TV: torch.Tensor

    @cached_property
    def probs_TV(self) -> torch.Tensor:
        """Probabilities; of predictions that are only compared with others, they are never made."""
        return self.log_probs_TV.exp()

    @classmethod
    def of(cls, logits_TV: torch.Tensor) -> "Predictions":
        """The predictions of these logits."""
        return cls(logits_TV.log_softmax(-1, dtype=torch.float32))

    @classmethod
    def together(cls, parts: Sequence["Predictions"]) -> "Predictions":
        """Several, one after another."""
        return cls(torch.cat([part.log_probs_TV for part in parts]))

    def at(self, places: slice) -> "Predictions":
        """Predictions at some of the places."""
        return Predictions(self.log_probs_TV[places])

    def losses(self, target_ids_T: np.ndarray) -> np.ndarray:
        """-ln p of target tokens: float32 [T], nats."""
        ids_T = to_device(target_ids_T, self.log_probs_TV.device)
        return target_losses(self.log_probs_TV, ids_T).cpu().numpy()

    @property
    def entropies_T(self) -> np.ndarray:
        """Entropy of each: float32 [T], nats."""
        return np.asarray(torch.special.entr(self.probs_TV).sum(-1).cpu())

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
    reference_index_BT: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-ln p of target tokens, and KL(reference || prediction): two float32 [B, T], nats.

    The divergence asks how far a prediction moved, not whether the target became likelier: it never sees the
    target. Whether the values are finite is not looked at (`refuse_not_finite` does): a GPU goes on, and
    nothing waits for it.

    The states are of the rows that predict the targets; the caller owns the shift by one. The place of each
    target's reference is `reference_index_BT`, int64, [B, T] or [1, T].
    """
    shape = target_ids_BT.shape
    index_N = to_device(reference_index_BT.expand(shape).reshape(-1), hidden_BTD.device)
    losses = []
    divergences = []
    blocks = _in_blocks(model, hidden_BTD, target_ids_BT.reshape(-1), index_N)
    for logits_NV, target_ids_N, references_N in blocks:
        log_probs_NV = logits_NV.log_softmax(-1, dtype=torch.float32)
        losses.append(target_losses(log_probs_NV, target_ids_N))
        divergences.append(reference.divergences(log_probs_NV, references_N))
    return torch.cat(losses).reshape(shape), torch.cat(divergences).reshape(shape)
