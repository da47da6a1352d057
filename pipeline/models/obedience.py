"""Whether a model does what `CausalLM` promises, tried on a few tokens when it is loaded.

A family that this project has never seen may look away from the future, the mask, the position IDs or the
prefix in its own way, and the numbers would be wrong without a sign of it. Shapes: S rows, V vocabulary.
"""

from collections.abc import Callable, Iterator

import torch

from pipeline.errors import InputError
from pipeline.models.causal_lm import CausalLM, Prefix, causal_visibility

_NUM_TOKENS = 24
# Of the largest logit's distance from the mean. Rounding stays well below; reading a token from another place
# does not.
_TOLERANCE = 1e-3
_COARSE_TOLERANCE = 5e-2


def refuse_disobedient(
    lm: CausalLM, stock_logits: Callable[[torch.Tensor], torch.Tensor], name: str, num_positions: int
) -> None:
    """Compare the model as told through `CausalLM` with the model left alone.

    Args:
        stock_logits: int64 [1, S] -> logits [S, V] of the model left alone.
        name: what messages call the model.
        num_positions: position IDs that may be used.

    Raises:
        InputError: they differ; says in what.
    """
    num_tokens = min(_NUM_TOKENS, num_positions)
    generator = torch.Generator().manual_seed(0)
    token_ids_1S = torch.randint(lm.vocabulary_size, (1, num_tokens), generator=generator).to(lm.device)
    try:
        broken = next((promise for promise in _broken_promises(lm, stock_logits, token_ids_1S)), None)
    except Exception as error:  # code of any family, met with arguments that it may not have been written for
        reason = (str(error).splitlines() or [""])[0][:300]
        raise InputError(
            f"{name} fails when it is told position IDs, a mask and a prefix"
            f" ({type(error).__name__}: {reason}), so it cannot be measured"
        ) from error
    if broken:
        raise InputError(f"{name} cannot be measured: {broken}")


def _broken_promises(
    lm: CausalLM, stock_logits: Callable[[torch.Tensor], torch.Tensor], token_ids_1S: torch.Tensor
) -> Iterator[str]:
    stock_SV = stock_logits(token_ids_1S)
    if not stock_SV.isfinite().all():
        yield "its logits are not finite numbers"
    if _differ(stock_logits(token_ids_1S[:, :-1]), stock_SV[:-1]):
        yield "its prediction for a token changes with the tokens after it, so it is not causal (an encoder?)"
    num_rows, device = token_ids_1S.shape[1], token_ids_1S.device
    rows_S = torch.arange(num_rows, device=device)
    full_SV = _logits(lm, token_ids_1S, rows_S, None)
    if _differ(full_SV, stock_SV):
        yield "its logits are not its output embedding of its last hidden states, scaled in a known way"
    is_kept_S = (rows_S < num_rows // 4) | (rows_S >= num_rows // 2)
    visible_SS = causal_visibility(num_rows, device)[0] & is_kept_S
    hidden_SV = _logits(lm, token_ids_1S, rows_S, visible_SS[None])
    left_out_SV = _logits(lm, token_ids_1S[:, is_kept_S], rows_S[is_kept_S], None)
    if _differ(left_out_SV, hidden_SV[is_kept_S]):
        yield "tokens left out at kept position IDs are not the same to it as tokens hidden by a mask"
    half = num_rows // 2
    prefix = lm.read(token_ids_1S, rows_S[None], None, None)[1].first(half)
    if _differ(_logits(lm, token_ids_1S[:, half:], rows_S[half:], None, prefix), full_SV[half:]):
        yield "it does not read on from a shared prefix as from the tokens themselves"


def _logits(
    lm: CausalLM,
    token_ids_1S: torch.Tensor,
    position_ids_S: torch.Tensor,
    visible_1SS: torch.Tensor | None,
    prefix: Prefix | None = None,
) -> torch.Tensor:
    return lm.logits(lm.hidden_states(token_ids_1S, position_ids_S[None], visible_1SS, None, prefix)[0])


def _differ(logits_SV: torch.Tensor, expected_SV: torch.Tensor) -> bool:
    largest = (expected_SV.float() - expected_SV.float().mean()).abs().max()
    worst_S = (logits_SV.float() - expected_SV.float()).abs().amax(dim=-1)
    # Written so that a NaN differs.
    if expected_SV.dtype == torch.float32:
        return not bool(worst_S.max() <= _TOLERANCE * largest)
    # Rounding may send a few rows to another expert where experts are chosen: half of the rows must agree.
    return not bool(worst_S.median() <= _COARSE_TOLERANCE * largest)
