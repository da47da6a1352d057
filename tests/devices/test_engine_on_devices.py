"""The engine on a device: every number is the CPU's, and brute force's; in bfloat16 within stated bounds.

What is compared with is computed on the CPU in float32, in other batches.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hugging_face_families import make_model
from naive_predictions import Stock, naive_losses, stock_olmo
from olmo.model import OLMo
from on_devices import on_a_gpu, on_devices

from pipeline.measuring.contexts import Batching, Measurement, PassQueue, full_pass, own_context
from pipeline.measuring.far_context import FarContext, far_contexts, leave_each_out, sparse_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import selected_positions
from pipeline.models.devices import usable_device
from pipeline.models.huggingface import HuggingFaceCausalLM, load_hugging_face
from pipeline.models.interface import CausalLM
from pipeline.models.olmo import OLMoCausalLM

LENGTHS = ContextLengths(short_context_length=6, long_context_length=48, targets_per_chunk=7)
CHUNKS = np.random.default_rng(11).integers(0, 48, (3, 48))
TOLERANCE = 1e-4
"""Nats. Products add up in another order on every device; TF32, which is off, would move them by 1e-2."""
MODELS = ("olmo", "olmo with grouped heads", "llama", "gpt2")
MEASURED = ("long_losses_T", "influence_TF", "divergence_TF", "attention_TF", "gate_gradient_TF")
RULES = ("leave_one_out", "leave_one_out_divergence", "add_one_in_divergence", "greedy", "nearest")
Contexts, MakeOLMo = Mapping[str, FarContext], Callable[..., OLMo]


def model_on(
    device: torch.device, name: str, make_olmo: MakeOLMo, dtype: torch.dtype = torch.float32
) -> CausalLM:
    """A toy model; a Hugging Face one shares its prefix."""
    if name.startswith("olmo"):
        fields = {"n_kv_heads": 2} if "grouped" in name else {}
        return OLMoCausalLM(make_olmo(seed=7, init_std=0.2, **fields).to(device, dtype), num_positions=48)
    lm = HuggingFaceCausalLM(make_model(name, seed=7).to(device, dtype))
    lm.share_prefix(True)
    return lm


def contexts_of(model: CausalLM, tokens_per_batch: int, background: np.ndarray | None = None) -> Contexts:
    measurement = Measurement(model, LENGTHS, Batching(tokens_per_batch))
    return far_contexts(measurement, *CHUNKS[:2], background_ids_BL=background)


@on_devices
@pytest.mark.parametrize("name", MODELS)
def test_every_number_is_the_cpus(device: torch.device, name: str, make_olmo: MakeOLMo) -> None:
    usable_device(str(device))
    here = contexts_of(model_on(device, name, make_olmo), 400)
    expected = contexts_of(model_on(torch.device("cpu"), name, make_olmo), 150)
    for far, found in here.items():
        for measured in MEASURED:
            values, exact = (getattr(context, measured) for context in (found, expected[far]))
            np.testing.assert_allclose(values, exact, rtol=0, atol=TOLERANCE, err_msg=f"{far} {measured}")
        assert np.nanstd(expected[far].influence_TF) > 50 * TOLERANCE
        for measured in ("short", "first_additions"):
            for values, exact in zip(getattr(found, measured), getattr(expected[far], measured), strict=True):
                np.testing.assert_allclose(values, exact, rtol=0, atol=TOLERANCE, err_msg=measured)


def on_both(
    device: torch.device, make_olmo: MakeOLMo, background: np.ndarray | None = None
) -> Iterator[FarContext]:
    """The own far context on the device, and on the CPU in other batches."""
    for where, size in ((device, 400), (torch.device("cpu"), 150)):
        yield contexts_of(model_on(where, "olmo", make_olmo), size, background)["own"]


@on_devices
def test_the_same_tokens_are_chosen_and_worth_the_same(device: torch.device, make_olmo: MakeOLMo) -> None:
    here, expected = on_both(device, make_olmo)
    chosen = {rule: selected_positions(here, rule, 3, seed=[0]) for rule in RULES}
    for rule, positions_TK in chosen.items():
        again_TK = selected_positions(expected, rule, 3, seed=[0])
        assert (positions_TK == again_TK).mean() > 0.9, rule  # ties may be broken the other way
    numbers = dict.fromkeys(RULES, [1, 2, 3])
    worth, expected_worth = (sparse_contexts(one, chosen, numbers) for one in (here, expected))
    for rule in RULES:
        np.testing.assert_allclose(worth[rule], expected_worth[rule], rtol=0, atol=TOLERANCE)


@on_devices
def test_a_foreign_background_is_measured_alike(device: torch.device, make_olmo: MakeOLMo) -> None:
    here, expected = on_both(device, make_olmo, CHUNKS[2:])
    np.testing.assert_allclose(here.influence_TF, expected.influence_TF, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(here.background, expected.background, rtol=0, atol=TOLERANCE)


@on_devices
def test_brute_force(device: torch.device, make_olmo: MakeOLMo) -> None:
    stock: Stock = stock_olmo(make_olmo(seed=7, init_std=0.2))
    found = contexts_of(model_on(device, "olmo", make_olmo), 400)["own"]
    for index in (0, 6):
        target = int(LENGTHS.targets_T[index])
        left_out = range(0, target - 6, 5)
        cases = [(CHUNKS[0], range(target))]
        cases += [(CHUNKS[0], [i for i in range(target) if i != gone]) for gone in left_out]
        everything, *losses = naive_losses(stock, target, cases)
        np.testing.assert_allclose(
            found.influence_TF[index, ::5][: len(losses)], np.array(losses) - everything, atol=TOLERANCE
        )


LOSS_BOUND, INFLUENCE_BOUND, LEAST_CORRELATION = 0.1, 0.2, 0.98
"""In bfloat16, which has 8 bits: nats at most; nats of a typical error over those of a typical influence."""


@on_devices
@pytest.mark.parametrize("name", ["olmo", "llama"])
def test_bfloat16_stays_within_bounds(device: torch.device, name: str, make_olmo: MakeOLMo) -> None:
    coarse = contexts_of(model_on(device, name, make_olmo, torch.bfloat16), 400)["own"]
    exact = contexts_of(model_on(torch.device("cpu"), name, make_olmo), 150)["own"]
    assert np.abs(coarse.long_losses_T - exact.long_losses_T).max() < LOSS_BOUND
    errors = coarse.influence_TF - exact.influence_TF
    assert 0 < np.nanstd(errors) < INFLUENCE_BOUND * np.nanstd(exact.influence_TF)
    is_far = ~np.isnan(exact.influence_TF)
    pairs = coarse.influence_TF[is_far], exact.influence_TF[is_far]
    assert np.corrcoef(*pairs)[0, 1] > LEAST_CORRELATION


@on_devices
def test_accelerate_may_place_a_model(device: torch.device, tmp_path: Path, make_olmo: MakeOLMo) -> None:
    make_model("llama", seed=7).save_pretrained(tmp_path)
    placed = load_hugging_face(tmp_path, device=torch.device("cpu"), device_map="auto", num_positions=48)
    assert placed.device.type == device.type
    found = contexts_of(placed, 400)["own"].influence_TF
    expected = contexts_of(model_on(torch.device("cpu"), "llama", make_olmo), 150)["own"].influence_TF
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_removal_waits_for_the_gpu(
    device: torch.device, dtype: torch.dtype, make_olmo: MakeOLMo, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sequence = model_on(device, "olmo", make_olmo, dtype), own_context(CHUNKS[0], LENGTHS)
    full, num_passes, stock = full_pass(model, sequence), [], PassQueue.read

    def read(queue: PassQueue) -> list[list[np.ndarray]]:
        torch.cuda.set_sync_debug_mode("default")  # up to here nothing may wait
        num_passes.append(len(queue._passes))
        return stock(queue)

    monkeypatch.setattr(PassQueue, "read", read)
    torch.cuda.set_sync_debug_mode("error")
    try:
        leave_each_out(model, sequence, Batching(400), full=full)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert num_passes[0] > 3


@on_a_gpu
def test_batches_are_halved_where_a_gpu_has_no_more(
    device: torch.device, make_olmo: MakeOLMo, caplog: pytest.LogCaptureFixture
) -> None:
    lengths = ContextLengths(short_context_length=16, long_context_length=512, targets_per_chunk=8)
    chunk_L = np.random.default_rng(1).integers(0, 48, 512)
    fields = {"seed": 7, "d_model": 256, "n_heads": 4, "max_sequence_length": 512}
    found = []
    for where, size in ((torch.device("cpu"), 4096), (device, 1 << 20)):
        model = OLMoCausalLM(make_olmo(**fields).to(where), num_positions=512)
        measurement = Measurement(model, lengths, Batching(size))
        if where.type == "cuda":
            torch.cuda.empty_cache()
            limit = torch.cuda.memory_reserved() + (256 << 20)
            torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
        try:
            found.append(far_contexts(measurement, chunk_L, chunk_L[::-1].copy())["own"].influence_TF)
        finally:
            if where.type == "cuda":
                torch.cuda.set_per_process_memory_fraction(1.0)
    assert "going on with half as many" in caplog.text
    np.testing.assert_allclose(*found, rtol=0, atol=TOLERANCE)
