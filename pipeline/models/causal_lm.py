"""The one interface through which measuring code sees a language model.

Shapes: B batch, S rows of a sequence, P rows of a prefix, K = S or P + S, D width, V vocabulary,
T query rows, N any number of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

# Logits are the largest tensor of all; this bounds them to 64 MiB of float32 at a time, on a GPU to 512 MiB:
# it is faster the more it is told to do at once.
LOGITS_PER_BLOCK = 1 << 24
LOGITS_PER_BLOCK_ON_ACCELERATORS = 1 << 27


class NotFiniteLossError(ArithmeticError):
    """A model gave a loss or a divergence that is no number, or infinite; measuring code says where."""

    def __init__(
        self, target_position: int, loss: float, sequence_index: int = 0, what: str = "loss"
    ) -> None:
        super().__init__(f"the {what} at position {target_position} is {loss}")
        self.what = what
        """"loss" or "divergence"."""
        self.target_position = target_position
        """In the coordinates of the position IDs that the model was given."""
        self.loss = loss
        self.sequence_index = sequence_index
        """Which sequence of its batch, where each has position IDs of its own."""
        self.model_name: str | None = None
        """Told where several models are measured together."""


KeysAndValues = tuple[torch.Tensor, torch.Tensor]
"""Of one layer, keys rotated by their position IDs: two [B, G, K, E], G key-value heads of width E."""


@dataclass(frozen=True)
class Prefix:
    """What a model keeps of rows already read, layer by layer, to be looked at by rows that come after."""

    keys_and_values: tuple[KeysAndValues, ...]

    @property
    def num_rows(self) -> int:
        """How many rows were read."""
        return self.keys_and_values[0][0].shape[2]

    def first(self, num_rows: int) -> "Prefix":
        """The prefix of the first `num_rows` rows only; a view, not a copy."""
        return Prefix(
            tuple((key[:, :, :num_rows], value[:, :, :num_rows]) for key, value in self.keys_and_values)
        )

    def copy(self) -> "Prefix":
        """The same numbers in other memory: tensors that a derivative may be taken through."""
        return Prefix(tuple((key.clone(), value.clone()) for key, value in self.keys_and_values))

    @classmethod
    def together(cls, parts: Sequence["Prefix"]) -> "Prefix":
        """The rows of several, one after another."""
        of_layers = zip(*(part.keys_and_values for part in parts), strict=True)
        return cls(
            tuple(
                (torch.cat([key for key, _ in layer], dim=2), torch.cat([value for _, value in layer], dim=2))
                for layer in of_layers
            )
        )

    def one_row_each(self, rows_B: torch.Tensor) -> "Prefix":
        """The prefixes of B sequences that begin with one row of this one each: [B, G, 1, E]."""

        def of_sequences(part_1GPE: torch.Tensor) -> torch.Tensor:
            return part_1GPE[0, :, rows_B.to(part_1GPE.device)].transpose(0, 1)[:, :, None]

        return Prefix(tuple((of_sequences(key), of_sequences(value)) for key, value in self.keys_and_values))


class CausalLM(Protocol):
    """A decoder-only model whose tokens can be given any position IDs and any visibility."""

    @property
    def vocabulary_size(self) -> int:
        """Token IDs run from 0 to this, exclusive."""

    @property
    def num_parameters(self) -> int:
        """Numbers that training sets, embeddings included; shared ones count once."""

    @property
    def device(self) -> torch.device:
        """Where inputs must lie."""

    def read(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_1T: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Prefix]:
        """`hidden_states` of one sequence, and what later rows need of it to read on."""

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
                P + S columns the rows of the prefix come first. None: a row sees the rows up to itself.
            query_rows_BT: int64, [B, T] or [1, T]; the rows, counted without the prefix, whose states are
                wanted. None: all rows.
            prefix: rows already read, shared by the sequences of the batch, or of each its own.
        """

    def sequence_bytes(self, num_rows: int, num_prefix_rows: int) -> int:
        """Memory that a pass takes at its peak for each sequence of its batch, estimated from above."""

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Vocabulary logits of hidden states: [N, V]."""


def causal_visibility(num_rows: int, device: torch.device) -> torch.Tensor:
    """Each row sees the rows up to itself: bool [1, S, S]."""
    return torch.ones(1, num_rows, num_rows, dtype=torch.bool, device=device).tril()


def rows_of(hidden_BSD: torch.Tensor, query_rows_BT: torch.Tensor | None) -> torch.Tensor:
    """The hidden states of the query rows, of all rows where None: [B, T, D]."""
    if query_rows_BT is None:
        return hidden_BSD
    rows_BT1 = query_rows_BT.expand(len(hidden_BSD), -1)[..., None]
    return hidden_BSD.gather(1, rows_BT1.expand(-1, -1, hidden_BSD.shape[-1]))


def target_losses(
    model: CausalLM,
    token_ids_BS: torch.Tensor,
    position_ids_BS: torch.Tensor,
    visible_BSK: torch.Tensor | None,
    query_rows_BT: torch.Tensor,
    target_ids_BT: torch.Tensor,
    prefix: Prefix | None = None,
) -> torch.Tensor:
    """-ln p of target tokens, each predicted from one row of its sequence: float32 [B, T], nats.

    Args:
        query_rows_BT: int64; the row whose output predicts the target. The caller owns the shift by one.
        target_ids_BT: int64; the tokens to be predicted.

    Raises:
        NotFiniteLossError: a loss is not a finite number; means and rankings would hide it.
    """
    hidden_BTD = model.hidden_states(token_ids_BS, position_ids_BS, visible_BSK, query_rows_BT, prefix)
    losses_BT = losses_of_hidden_states(model, hidden_BTD, target_ids_BT)
    refuse_not_finite(losses_BT, position_ids_BS, query_rows_BT)
    return losses_BT


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
    blocks = zip(
        hidden_BTD.flatten(0, 1).split(num_rows), target_ids_BT.reshape(-1).split(num_rows), strict=True
    )
    losses = []
    for hidden_ND, target_ids_N in blocks:
        logits_NV = model.logits(hidden_ND).float()
        losses.append(logits_NV.logsumexp(-1) - logits_NV.gather(-1, target_ids_N[:, None])[:, 0])
    return torch.cat(losses).reshape(target_ids_BT.shape)


def refuse_not_finite(
    losses_BT: torch.Tensor, position_ids_BS: torch.Tensor, query_rows_BT: torch.Tensor, what: str = "loss"
) -> None:
    """Raise `NotFiniteLossError` for the first loss that is no finite number, naming its position."""
    is_finite_BT = losses_BT.isfinite()
    if is_finite_BT.all():
        return
    first, target = (~is_finite_BT).nonzero()[0].tolist()
    position_ids_S = position_ids_BS.expand(len(losses_BT), -1)[first]
    query_row = query_rows_BT.expand(losses_BT.shape)[first, target]
    raise NotFiniteLossError(int(position_ids_S[query_row]) + 1, float(losses_BT[first, target]), first, what)
