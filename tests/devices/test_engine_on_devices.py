"""The engine on a device: every number is the CPU's; in bfloat16 within stated bounds.

What is compared with is computed on the CPU in float32, in other batches.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from hugging_face_families import make_model
from olmo.model import OLMo
from on_devices import on_devices

from sparsity_length.measuring.contexts import Batching
from sparsity_length.measuring.far_context import FarContext, far_contexts
from sparsity_length.measuring.rules import attention, gradient
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.models.devices import usable_device
from sparsity_length.models.huggingface import HuggingFaceCausalLM
from sparsity_length.models.interface import CausalLM
from sparsity_length.models.olmo import OLMoCausalLM

LENGTHS = ContextLengths(short_context_length=6, long_context_length=48, targets_per_chunk=7)
CHUNKS = np.random.default_rng(11).integers(0, 48, (3, 48))
TOLERANCE = 1e-4
"""Nats. Products add up in another order on every device; TF32, which is off, would move them by 1e-2."""
MODELS = ("olmo", "olmo with grouped heads", "llama", "gpt2")
Contexts = Mapping[str, FarContext]
MakeOLMo = Callable[..., OLMo]


def model_on(
    device: torch.device, name: str, make_olmo: MakeOLMo, dtype: torch.dtype = torch.float32
) -> CausalLM:
    """A toy model."""
    if name.startswith("olmo"):
        fields = {"n_kv_heads": 2} if "grouped" in name else {}
        return OLMoCausalLM(make_olmo(seed=7, init_std=0.2, **fields).to(device, dtype))
    return HuggingFaceCausalLM(make_model(name, seed=7).to(device, dtype))


def contexts_of(model: CausalLM, tokens_per_batch: int) -> Contexts:
    return far_contexts(model, LENGTHS, Batching(tokens_per_batch), *CHUNKS[:2])


@on_devices
@pytest.mark.parametrize("name", MODELS)
def test_every_number_is_the_cpus(device: torch.device, name: str, make_olmo: MakeOLMo) -> None:
    usable_device(str(device))
    here = contexts_of(model_on(device, name, make_olmo), 400)
    expected = contexts_of(model_on(torch.device("cpu"), name, make_olmo), 150)
    for far, found in here.items():
        for rule in (attention, gradient):
            values, exact = (rule(context) for context in (found, expected[far]))
            np.testing.assert_allclose(values, exact, rtol=0, atol=TOLERANCE, err_msg=f"{far} {rule}")
        assert np.nanstd(expected[far].influence.losses) > 50 * TOLERANCE
        for measured in ("long_losses_T", "influence", "short", "first_additions"):
            for values, exact in zip(getattr(found, measured), getattr(expected[far], measured), strict=True):
                np.testing.assert_allclose(values, exact, rtol=0, atol=TOLERANCE, err_msg=measured)


LOSS_BOUND = 0.1
INFLUENCE_BOUND = 0.2
LEAST_CORRELATION = 0.98
"""In bfloat16, which has 8 bits: nats at most; nats of a typical error over those of a typical influence."""


@on_devices
@pytest.mark.parametrize("name", ["olmo", "llama"])
def test_bfloat16_stays_within_bounds(device: torch.device, name: str, make_olmo: MakeOLMo) -> None:
    coarse = contexts_of(model_on(device, name, make_olmo, torch.bfloat16), 400)["own"]
    exact = contexts_of(model_on(torch.device("cpu"), name, make_olmo), 150)["own"]
    assert np.abs(coarse.long_losses_T - exact.long_losses_T).max() < LOSS_BOUND
    errors = coarse.influence.losses - exact.influence.losses
    assert 0 < np.nanstd(errors) < INFLUENCE_BOUND * np.nanstd(exact.influence.losses)
    is_far = ~np.isnan(exact.influence.losses)
    pairs = coarse.influence.losses[is_far], exact.influence.losses[is_far]
    assert np.corrcoef(*pairs)[0, 1] > LEAST_CORRELATION
