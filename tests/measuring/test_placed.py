"""Placements of distant tokens: read by hand, and measured as stock models do, one context at a time."""

import numpy as np
import pytest
import torch
from hugging_face_families import make_model

from pipeline.measuring.contexts import Batching
from pipeline.measuring.placed import NearContexts, Placement, placement_columns, read_distant
from pipeline.models.huggingface import HuggingFaceCausalLM

TEXT, OTHER = np.random.default_rng(6).integers(0, 48, (2, 30))
PLACEMENTS = ["own:3", "own:3@20", "own:6/2", "own:6/2@9", "swap:3", "swap:6/3@31", "last:2"]


@pytest.mark.parametrize("are_shared", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_equal_to_stock_models_one_context_at_a_time(family: str, are_shared: bool) -> None:
    stock, num_near = make_model(family, seed=4, attention="eager"), 8
    lm, targets_T = HuggingFaceCausalLM(make_model(family, seed=4)), np.array([24, 26, 28])

    def log_probs(tokens: np.ndarray, position_ids: np.ndarray) -> np.ndarray:
        hidden = torch.ones(len(tokens), len(tokens)).triu(1) * torch.finfo(torch.float32).min
        with torch.inference_mode():
            logits = stock(
                input_ids=torch.as_tensor(tokens)[None], position_ids=torch.as_tensor(position_ids)[None],
                attention_mask=hidden[None, None], use_cache=False,
            ).logits  # fmt: skip
        return logits[0, -1].double().log_softmax(-1).numpy()

    near = NearContexts.of(targets_T, num_near, are_shared=are_shared)
    assert near.targets_BQ.ravel().tolist() == targets_T.tolist()
    placements = [Placement.parse(name) for name in PLACEMENTS]
    columns = placement_columns(
        lm, TEXT, near, placements, Batching(20),
        lambda placement: {"other": read_distant(lm, OTHER[: placement.num_distant], placement)},
    )  # fmt: skip
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    assert len(rows) == len(targets_T) * (1 + len(PLACEMENTS))
    for row in rows:
        target = row["target"]
        start = targets_T[-1] - num_near if are_shared else target - num_near
        own = TEXT[start:target]
        reference = log_probs(own, np.arange(len(own)))
        if row["placement"] == "near":
            expected, entropy = reference, -(np.exp(reference) * reference).sum()
            assert row["entropy"] == pytest.approx(entropy, abs=1e-5)
        elif (placement := Placement.parse(row["placement"])).kind == "last":
            expected = log_probs(own[-2:], np.arange(2))
        else:
            number, is_own = placement.num_distant, placement.kind == "own"
            distant = TEXT[start - number : start] if is_own else OTHER[:number]
            ids = np.concatenate([placement.distant_ids_D, placement.near_start + np.arange(len(own))])
            expected = log_probs(np.concatenate([distant, own]), ids)
            assert (row["distant_document_id"] is None) == is_own
        assert row["loss"] == pytest.approx(-expected[TEXT[target]], abs=2e-5)
        kl = (np.exp(reference) * (reference - expected)).sum()
        assert row["divergence"] == pytest.approx(kl, abs=2e-5)
