"""Placements of distant tokens: read by hand, and measured as stock models do, one context at a time."""

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hugging_face_families import make_model

from sparsity_length.cli import InputError
from sparsity_length.measuring.contexts import Batching, read_prefix
from sparsity_length.measuring.placed import measured_placements
from sparsity_length.measuring.settings import Placement, Placing
from sparsity_length.models.huggingface import HuggingFaceCausalLM

TEXT, OTHER = np.random.default_rng(6).integers(0, 48, (2, 30))


def placements(start: int) -> dict[str, tuple[Sequence[int], int]]:
    """The IDs of distant tokens, and that of the first near one, which stands at `start` in the text."""
    return {
        "near": ([], 0),
        "own:3": ([0, 1, 2], 3),
        "own:3@20": ([0, 1, 2], 20),
        "own:6/2": ([0, 0, 0, 1, 1, 1], 2),
        "own:6/2@9": ([0, 0, 0, 1, 1, 1], 9),
        "swap:3": ([0, 1, 2], 3),
        "swap:6/3@31": ([0, 0, 1, 1, 2, 2], 31),
        "own:all": (range(start), start),
        "own:all+30": (range(start), start + 30),
        "swap:all": (range(start), start),
        "swap:all+7": (range(start), start + 7),
    }


@pytest.mark.parametrize("compared_with", ["near", "full"])
@pytest.mark.parametrize("are_shared", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2"])
def test_equal_to_stock_models_one_context_at_a_time(
    family: str, are_shared: bool, compared_with: str
) -> None:
    stock = make_model(family, seed=4, attention="eager")
    lm = HuggingFaceCausalLM(make_model(family, seed=4))
    targets_T = np.array([24, 26, 28])
    most = 20

    @torch.inference_mode()
    def log_probs(tokens: np.ndarray, position_ids: Sequence[int]) -> np.ndarray:
        hidden = torch.ones(len(tokens), len(tokens)).triu(1) * torch.finfo(torch.float32).min
        logits = stock(
            input_ids=torch.as_tensor(tokens)[None],
            position_ids=torch.tensor([position_ids]),
            attention_mask=hidden[None, None],
            use_cache=False,
        ).logits
        return logits[0, -1].double().log_softmax(-1).numpy()

    # The last target is what the model expects, so that one is its top prediction.
    text = TEXT.copy()
    text[28] = log_probs(text[20:28], range(8)).argmax()
    swaps = {
        name: read_prefix(lm, OTHER[: len(ids)], np.array(ids))
        for name, (ids, _) in placements(most).items()
        if name.startswith("swap")
    }
    names = [*placements(most), "last:2"]
    found = measured_placements(
        lm,
        text,
        targets_T[None] if are_shared else targets_T[:, None],
        8,
        [(Placement.parse(name), name, swaps.get(name)) for name in names[1:]],
        Batching(20),
        compared_with,
    )
    for name, (measured_name, document_id, measured, entropies) in zip(names, found, strict=True):
        assert measured_name == (document_id or "near") == name
        for target, loss, kl, is_top, entropy in zip(targets_T, *measured, entropies, strict=True):
            start = most if are_shared else target - 8
            own = text[start:target]
            # The whole text before the target, as any user of the model reads it.
            alone, full = (log_probs(text[first:target], range(target - first)) for first in (start, 0))
            reference = alone if compared_with == "near" else full
            if name == "last:2":
                expected = log_probs(own[-2:], range(len(own))[-2:])
            else:
                ids, first = placements(start)[name]
                distant = OTHER[: len(ids)] if name in swaps else text[start - len(ids) : start]
                expected = log_probs(np.append(distant, own), [*ids, *range(first, first + len(own))])
            assert loss == pytest.approx(-expected[text[target]], abs=2e-5)
            assert is_top == (expected.argmax() == text[target])
            assert kl == pytest.approx((np.exp(reference) * (reference - expected)).sum(), abs=2e-5)
            if name == "near":
                assert entropy == pytest.approx(-(np.exp(reference) * reference).sum(), abs=1e-5)


@pytest.mark.parametrize(
    ("near", "placement", "fits"),
    [
        (16, "own:32", True),
        (16, "own:33", False),
        (16, "last:15", True),
        (16, "last:16", False),
        (48, "swap:all", False),
    ],
)
def test_what_a_chunk_has_room_for(near: int, placement: str, fits: bool) -> None:
    """Before the one target stand 48 tokens, which have IDs of the chunk."""
    asked = {"long_context_length": 49, "targets_per_chunk": 1, "near_context_length": near}
    refused = pytest.raises(InputError, match="choose a larger --long-context-length")
    with nullcontext() if fits else refused:
        placing = Placing(**asked, placements=(placement,))
        assert (placing.most_distant, placing.num_positions) == (48 - near, 49)


def test_near_tokens_that_are_all_there_is_are_the_full_context() -> None:
    """And as many last ones are the near tokens, also where positions are absolute."""
    cases = [(Placement.parse(name), None, None) for name in ("last:8", "last:4")]
    found = measured_placements(
        HuggingFaceCausalLM(make_model("gpt2")), TEXT, np.array([[8]]), 8, cases, Batching(20), "full"
    )
    near, whole, few = (float(measured.divergences[0]) for _, _, measured, _ in found)
    assert max(near, whole) < 1e-6 < 1e-3 < few
