"""LongPPL's shared windows: hand-checked integers, and its published algorithm run again by stock models.

The witness follows the description of Fang et al. (2024) and shares no code with the engine: it reads each
window as a text of its own, which is how position IDs come to restart.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hand_made_models import SeenTokens
from hugging_face_families import make_model
from losses_under_contexts import window_losses
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, windowed_losses
from pipeline.models.huggingface import HuggingFaceCausalLM
from pipeline.models.interface import CausalLM, NotFiniteLossError
from pipeline.models.leading import led_by
from pipeline.models.olmo import OLMoCausalLM

Stock = Callable[[torch.Tensor], torch.Tensor]
"""int64 [1, S] -> logits [1, S, V]."""
L, TOLERANCE = 40, 2e-5
TEXT = np.random.default_rng(6).integers(0, 48, L)


def published_losses(stock: Stock, text: np.ndarray, trunc_len: int, sliding_window: int) -> dict[int, float]:
    """The short losses of LongPPL: place of a token -> its loss; none for the first `trunc_len` tokens."""
    losses = {}
    for start in range(0, len(text) - trunc_len, sliding_window):
        end = min(start + trunc_len + sliding_window, len(text))
        with torch.inference_mode():
            log_probs_SV = stock(torch.as_tensor(text[None, start:end])).log_softmax(-1)[0]
        for place in range(start + trunc_len, end):
            losses[place] = -log_probs_SV[place - start - 1, text[place]].item()
    return losses


def stock_and_model(family: str, make_olmo: Callable[..., OLMo]) -> tuple[Stock, CausalLM]:
    if family == "olmo":
        olmo = make_olmo(seed=4)
        return lambda token_ids: olmo(token_ids).logits, OLMoCausalLM(make_olmo(seed=4))
    if family == "bos olmo":
        stock, ours = stock_and_model("olmo", make_olmo)
        bos = torch.tensor([[7]])
        return lambda token_ids: stock(torch.cat([bos, token_ids], dim=1))[:, 1:], led_by(ours, [7])
    stock = make_model(family, seed=4, attention="eager")
    lm = HuggingFaceCausalLM(make_model(family, seed=4))
    return lambda token_ids: stock(input_ids=token_ids, use_cache=False).logits, lm


@pytest.mark.parametrize("family", ["olmo", "llama", "gpt2", "bos olmo"])
def test_equal_to_the_published_algorithm(make_olmo: Callable[..., OLMo], family: str) -> None:
    stock, lm = stock_and_model(family, make_olmo)
    for stride, first_target in [(1, 8), (2, 9), (5, 14), (7, 39), (31, 8), (32, 14), (100, 8)]:
        published = published_losses(stock, TEXT, 8, stride)
        assert list(published) == list(range(8, L))
        targets = np.arange(first_target, L)
        found = windowed_losses(lm, TEXT, targets, 8, stride, Batching(60))
        assert found.dtype == np.float32
        expected = [published[target] for target in targets]
        np.testing.assert_allclose(found, expected, atol=TOLERANCE, err_msg=f"{stride} {first_target}")


@pytest.mark.parametrize("family", ["olmo", "gpt2"])
def test_position_ids_and_what_is_seen_differ_from_exact_windows(
    make_olmo: Callable[..., OLMo], family: str
) -> None:
    _, lm = stock_and_model(family, make_olmo)
    targets = np.arange(8, L)
    exact = window_losses(lm, TEXT, targets, 8, Batching(1000))
    of_one, of_four = (windowed_losses(lm, TEXT, targets, 8, w, Batching(1000)) - exact for w in (1, 4))
    is_first = (targets - 8) % 4 == 0  # of a block of four; the others see more than the short context
    assert np.abs(of_four[~is_first]).min() > TOLERANCE
    if family == "gpt2":  # learned positions: the same tokens at other IDs are another context
        assert np.abs(of_one[targets >= 20]).min() > 1e-3
    else:  # RoPE sees distances only
        assert max(np.abs(of_one).max(), np.abs(of_four[is_first]).max()) < TOLERANCE


def test_who_shares_a_window_of_ten_tokens() -> None:
    # s = 3, w = 2: blocks {3 4} {5 6} {7 8} {9}, their windows from 0, 2, 4, 6. Of the targets 6 to 9, each
    # window is read up to the token before its last target; the last is filled up by the chunk's last token.
    seen = SeenTokens()
    windowed_losses(seen, np.arange(10, 20), np.arange(6, 10), 3, 2, Batching(8))
    ((first_tokens, first_positions), (last_tokens, last_positions)) = seen.batches
    assert first_tokens == [[12, 13, 14, 15], [14, 15, 16, 17]]
    assert last_tokens == [[16, 17, 18, 19]]
    assert first_positions == last_positions == [[0, 1, 2, 3]]
    assert seen.query_tokens == [[[15, 15], [16, 17]], [[18, 18]]]


class _LostAfter47(SeenTokens):
    """Has no number for the token after token 47."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().logits(hidden).masked_fill(hidden[:, 47:48] > 0, torch.nan)


@pytest.mark.parametrize("target", [12, 21, 39])
def test_a_broken_loss_is_placed_in_the_chunk(target: int) -> None:
    chunk = np.zeros(L, dtype=np.int64)
    chunk[target - 1] = 47
    with pytest.raises(NotFiniteLossError) as error:
        windowed_losses(_LostAfter47(), chunk, np.arange(12, L), 8, 4, Batching(40))
    assert error.value.target_position == target
