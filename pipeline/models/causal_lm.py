"""The one interface through which measuring code sees a language model.

Shapes: B batch, S sequence, D width, V vocabulary, T targets, N any number of rows.
"""

from typing import Protocol

import torch

# Logits are the largest tensor of all; this bounds them to 64 MiB of float32 at a time.
_LOGITS_PER_BLOCK = 1 << 24


class CausalLM(Protocol):
    """A decoder-only model whose tokens can be given any position IDs and any visibility."""

    @property
    def vocabulary_size(self) -> int:
        """Token IDs run from 0 to this, exclusive."""

    @property
    def device(self) -> torch.device:
        """Where inputs must lie."""

    def hidden_states(
        self, token_ids_BS: torch.Tensor, position_ids_BS: torch.Tensor, visible_BSS: torch.Tensor | None
    ) -> torch.Tensor:
        """The final hidden states, after the last norm, before the vocabulary projection: [B, S, D].

        Args:
            token_ids_BS: int64.
            position_ids_BS: int64, [B, S] or [1, S]; the positions RoPE rotates by, in any order.
            visible_BSS: bool, [B, S, S] or [1, S, S]; entry [b, q, k] is whether row q may look at row k.
                None: row q sees the rows up to itself.
        """

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Vocabulary logits of hidden states: [N, V]."""


def target_losses(
    model: CausalLM,
    token_ids_BS: torch.Tensor,
    position_ids_BS: torch.Tensor,
    visible_BSS: torch.Tensor | None,
    query_rows_BT: torch.Tensor,
    target_ids_BT: torch.Tensor,
) -> torch.Tensor:
    """-ln p of target tokens, each predicted from one row of its sequence: float32 [B, T], nats.

    The vocabulary projection runs at the T query rows only. Log-sum-exp minus the target's logit is the
    loss; taking the softmax first would lose it to rounding where the model is sure.

    Args:
        query_rows_BT: int64; the row whose output predicts the target. The caller owns the shift by one.
        target_ids_BT: int64; the tokens to be predicted.
    """
    hidden_BSD = model.hidden_states(token_ids_BS, position_ids_BS, visible_BSS)
    width = hidden_BSD.shape[-1]
    hidden_BTD = hidden_BSD.gather(1, query_rows_BT[..., None].expand(-1, -1, width))
    rows_per_block = max(1, _LOGITS_PER_BLOCK // model.vocabulary_size)
    losses = []
    blocks = zip(
        hidden_BTD.reshape(-1, width).split(rows_per_block),
        target_ids_BT.reshape(-1).split(rows_per_block),
        strict=True,
    )
    for hidden_ND, target_ids_N in blocks:
        logits_NV = model.logits(hidden_ND).float()
        losses.append(logits_NV.logsumexp(-1) - logits_NV.gather(-1, target_ids_N[:, None])[:, 0])
    return torch.cat(losses).reshape(target_ids_BT.shape)
