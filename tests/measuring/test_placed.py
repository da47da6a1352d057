"""Placements of distant tokens: read by hand, and measured as stock models do, one context at a time."""

import numpy as np
import pytest
import torch
from hugging_face_families import make_model

from sparsity_length.cli import InputError
from sparsity_length.measuring.contexts import Batching, read_prefix
from sparsity_length.measuring.placed import distant_ids, measured_placements
from sparsity_length.measuring.settings import Placement, Placing
from sparsity_length.models.huggingface import HuggingFaceCausalLM

TEXT, OTHER = np.random.default_rng(6).integers(0, 48, (2, 30))
PLACEMENTS = ["own:3", "own:3@20", "own:6/2", "own:6/2@9", "swap:3", "swap:6/3@31", "last:2"]
PLACEMENTS += ["own:all", "own:all+30", "swap:all", "swap:all+7"]


@pytest.mark.parametrize("compared_with", ["near", "full"])
@pytest.mark.parametrize("are_shared", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2"])
def test_equal_to_stock_models_one_context_at_a_time(
    family: str, are_shared: bool, compared_with: str
) -> None:
    stock = make_model(family, seed=4, attention="eager")
    num_near = 8
    lm = HuggingFaceCausalLM(make_model(family, seed=4))
    targets_T = np.array([24, 26, 28])

    @torch.inference_mode()
    def log_probs(tokens: np.ndarray, position_ids: np.ndarray) -> np.ndarray:
        hidden = torch.ones(len(tokens), len(tokens)).triu(1) * torch.finfo(torch.float32).min
        logits = stock(
            input_ids=torch.as_tensor(tokens)[None],
            position_ids=torch.as_tensor(position_ids)[None],
            attention_mask=hidden[None, None],
            use_cache=False,
        ).logits
        return logits[0, -1].double().log_softmax(-1).numpy()

    # The last target is what the model expects, so that one is its top prediction.
    text = TEXT.copy()
    text[28] = log_probs(text[20:28], np.arange(num_near)).argmax()
    cases = []
    most = targets_T[-1] - num_near
    for one in map(Placement.parse, PLACEMENTS):
        number = one.num_distant or most
        prefix = read_prefix(lm, OTHER[:number], distant_ids(number, one.span or most))
        cases.append((one, "other", prefix) if one.kind == "swap" else (one, None, None))
    found = measured_placements(
        lm,
        text,
        targets_T[None] if are_shared else targets_T[:, None],
        num_near,
        cases,
        Batching(20),
        compared_with,
    )
    rows = [
        (name, document_id, target, *values)
        for name, document_id, measured in found
        for target, *values in zip(targets_T, *measured.values(), strict=True)
    ]
    assert rows[len(targets_T) - 1][5]
    assert len(rows) == len(targets_T) * (1 + len(PLACEMENTS))
    for name, document_id, target, loss, kl, is_top, *entropy in rows:
        start = targets_T[-1] - num_near if are_shared else target - num_near
        own = text[start:target]
        # The whole text before the target, as any user of the model reads it.
        full = log_probs(text[:target], np.arange(target))
        alone = log_probs(own, np.arange(len(own)))
        reference = alone if compared_with == "near" else full
        if name == "near":
            expected = alone
            assert entropy == [pytest.approx(-(np.exp(reference) * reference).sum(), abs=1e-5)]
        elif (placement := Placement.parse(name)).kind == "last":
            expected = log_probs(own[-2:], np.arange(len(own))[-2:])
        else:
            is_own = placement.kind == "own"
            number = placement.num_distant or start
            span = placement.span or start
            distant = text[start - number : start] if is_own else OTHER[:number]
            ids = [*distant_ids(number, span), *(span + placement.gap + np.arange(len(own)))]
            expected = log_probs(np.concatenate([distant, own]), np.array(ids))
            assert (document_id is None) == is_own
        assert loss == pytest.approx(-expected[text[target]], abs=1e-5)
        assert is_top == (expected.argmax() == text[target])
        assert kl == pytest.approx((np.exp(reference) * (reference - expected)).sum(), abs=1e-5)
        if name == "own:all":  # a gap of 0 is the plain full context
            assert loss == pytest.approx(-full[text[target]], abs=1e-5)


@pytest.mark.parametrize(
    ("near", "placement", "fits"),
    [
        (16, "own:32", True),
        (16, "own:33", False),
        (16, "own:all", True),
        (16, "last:15", True),
        (16, "last:16", False),
        (48, "swap:all", False),
        (48, "last:4", True),
    ],
)
def test_what_a_chunk_has_room_for(near: int, placement: str, fits: bool) -> None:
    """Before the one target stand 48 tokens, which have IDs of the chunk."""
    asked = {"long_context_length": 49, "targets_per_chunk": 1, "near_context_length": near}
    if fits:
        placing = Placing(**asked, placements=(placement,))
        assert (placing.most_distant, placing.num_positions) == (48 - near, 49)
        assert not placing.distant_reads
    else:
        with pytest.raises(InputError, match="choose a larger --long-context-length"):
            Placing(**asked, placements=(placement,))


def test_near_tokens_that_are_all_there_is_are_the_full_context() -> None:
    """And as many last ones are the near tokens, also where positions are absolute."""
    cases = [(Placement.parse(name), None, None) for name in ("last:8", "last:4")]
    found = measured_placements(
        HuggingFaceCausalLM(make_model("gpt2")), TEXT, np.array([[8]]), 8, cases, Batching(20), "full"
    )
    near, whole, few = (float(measured["divergence"][0]) for _, _, measured in found)
    assert max(near, whole) < 1e-6 < 1e-3 < few
