"""The RoPE seam: chosen position IDs, and nothing else changed."""

from collections.abc import Callable

import pytest
import torch
from olmo.model import OLMo

from pipeline.models.olmo import OLMoCausalLM, use_position_ids

MakeOLMo = Callable[..., OLMo]


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 48, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rope_full_precision": False},
        {"n_kv_heads": 2},
        {"block_group_size": 2},
        {"weight_tying": False, "scale_logits": True, "embedding_layer_norm": True},
        {"attention_layer_norm": True, "norm_after": True, "layer_norm_type": "rms"},
    ],
)
def test_contiguous_ids_give_the_stock_logits_bit_for_bit(
    make_olmo: MakeOLMo, fields: dict[str, object]
) -> None:
    token_ids = _tokens(2, 40)
    with torch.inference_mode():
        stock = make_olmo(**fields)(token_ids).logits
    lm = OLMoCausalLM(make_olmo(**fields))
    hidden = lm.hidden_states(token_ids, torch.arange(40)[None], None, None)
    assert torch.equal(lm.logits(hidden), stock)


def test_training_forward_reads_the_ids_too(make_olmo: MakeOLMo) -> None:
    token_ids, model = _tokens(2, 40), make_olmo()
    stock = model(token_ids).logits
    rotary = use_position_ids(model)
    rotary.set_position_ids(torch.arange(40)[None])
    assert torch.equal(model(token_ids).logits, stock)
    rotary.set_position_ids(torch.arange(0, 80, 2)[None])
    assert (model(token_ids).logits - stock).abs().max() > 1e-3


def test_shifting_all_ids_changes_nothing(make_olmo: MakeOLMo) -> None:
    token_ids, lm = _tokens(2, 40), OLMoCausalLM(make_olmo(init_std=0.1))
    near = lm.logits(lm.hidden_states(token_ids, torch.arange(40)[None], None, None))
    # Far beyond max_sequence_length: the table of sines grows.
    far = lm.logits(lm.hidden_states(token_ids, torch.arange(40)[None] + 100, None, None))
    assert (near - far).abs().max() < 1e-5


def test_ids_may_differ_within_a_batch(make_olmo: MakeOLMo) -> None:
    token_ids, lm = _tokens(1, 10).expand(2, -1), OLMoCausalLM(make_olmo())
    both = torch.stack([torch.arange(10), torch.arange(0, 30, 3)])
    together = lm.hidden_states(token_ids, both, None, None)
    for row in (0, 1):
        alone = lm.hidden_states(token_ids[row : row + 1], both[row : row + 1], None, None)
        assert (together[row] - alone[0]).abs().max() < 1e-5


def test_leaving_a_token_out_equals_masking_every_edge_into_it(make_olmo: MakeOLMo) -> None:
    token_ids, lm, left_out = _tokens(1, 24), OLMoCausalLM(make_olmo()), 7
    kept = torch.tensor([i for i in range(24) if i != left_out])
    gathered = lm.hidden_states(token_ids[:, kept], kept[None], None, None)
    visible = torch.ones(24, 24, dtype=torch.bool).tril()
    visible[:, left_out] = False
    masked = lm.hidden_states(token_ids, torch.arange(24)[None], visible[None], None)
    assert (lm.logits(gathered[0]) - lm.logits(masked[0, kept])).abs().max() < 1e-5


def test_without_rope_position_ids_are_refused(make_olmo: MakeOLMo) -> None:
    with pytest.raises(ValueError, match="RoPE only"):
        use_position_ids(make_olmo(rope=False))
