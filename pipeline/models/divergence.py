"""How far predictions move from a reference, as whole distributions.

Shapes: B batch, S rows, K rows to look at, T query rows, V vocabulary, D width, N any number of rows.
"""

import torch

from pipeline.models.causal_lm import LOGITS_PER_BLOCK, CausalLM, Prefix, refuse_not_finite


def losses_and_divergences(
    model: CausalLM,
    token_ids_BS: torch.Tensor,
    position_ids_BS: torch.Tensor,
    visible_BSK: torch.Tensor | None,
    query_rows_BT: torch.Tensor,
    target_ids_BT: torch.Tensor,
    reference_log_probs_TV: torch.Tensor,
    prefix: Prefix | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two float32 [B, T], nats: `target_losses`, and KL(reference || prediction) of the whole distribution.

    The divergence asks how far a prediction moved, not whether the target became likelier: it never sees the
    target. Distributions are compared block by block, so there is no [B, T, V] tensor.

    Args:
        reference_log_probs_TV: of `log_probs`; what target t's prediction is compared with.

    Raises:
        NotFiniteLossError: as `target_losses`.
    """
    hidden_BTD = model.hidden_states(token_ids_BS, position_ids_BS, visible_BSK, query_rows_BT, prefix)
    target_index_BT = torch.arange(target_ids_BT.shape[1], device=target_ids_BT.device).expand_as(
        target_ids_BT
    )
    rows_per_block = max(1, LOGITS_PER_BLOCK // model.vocabulary_size)
    blocks = zip(
        hidden_BTD.flatten(0, 1).split(rows_per_block),
        target_ids_BT.reshape(-1).split(rows_per_block),
        target_index_BT.reshape(-1).split(rows_per_block),
        strict=True,
    )
    losses, divergences = [], []
    for hidden_ND, target_ids_N, target_index_N in blocks:
        log_probs_NV = log_probs(model, hidden_ND)
        reference_NV = reference_log_probs_TV[target_index_N]
        losses.append(-log_probs_NV.gather(-1, target_ids_N[:, None])[:, 0])
        divergences.append((reference_NV.exp() * (reference_NV - log_probs_NV)).sum(-1))
    shape = target_ids_BT.shape
    losses_BT = torch.cat(losses).reshape(shape)
    refuse_not_finite(losses_BT, position_ids_BS, query_rows_BT)
    return losses_BT, torch.cat(divergences).reshape(shape)


def log_probs(model: CausalLM, hidden_ND: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the whole vocabulary, from the states that predict: float32 [N, V]."""
    logits_NV = model.logits(hidden_ND).float()
    return logits_NV - logits_NV.logsumexp(-1, keepdim=True)
