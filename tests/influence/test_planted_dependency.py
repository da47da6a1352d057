"""A dependency put there on purpose must be found: tokens that repeat what stood 12 places before."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import (
    OTHER_DOCUMENT,
    OWN,
    FarContext,
    far_contexts,
    selected_positions,
    sparse_contexts,
)
from pipeline.measuring.flags import ContextLengths
from pipeline.models.olmo import OLMoCausalLM, use_position_ids

PERIOD, LENGTH, VOCABULARY = 12, 24, 16
LENGTHS = ContextLengths(short_context_length=4, long_context_length=LENGTH, targets_per_chunk=6)


def _repeated(num_sequences: int, generator: torch.Generator) -> torch.Tensor:
    half = torch.randint(0, VOCABULARY, (num_sequences, PERIOD), generator=generator)
    return half.repeat(1, LENGTH // PERIOD)


def _test_sequences() -> np.ndarray:
    """Sequences with no token twice in a half: the planted token alone tells the target."""
    half = torch.rand(21, VOCABULARY, generator=torch.Generator().manual_seed(9)).argsort(1)[:, :PERIOD]
    return half.repeat(1, LENGTH // PERIOD).numpy()


def _trained_copier(make_olmo: Callable[..., OLMo], final_loss: float) -> OLMoCausalLM:
    """An OLMo trained, in seconds, to say again the token 12 before; one layer can."""
    model = make_olmo(n_layers=1, d_model=32, vocab_size=VOCABULARY, embedding_size=VOCABULARY, init_std=0.1)
    use_position_ids(model).set_position_ids(torch.arange(LENGTH)[None])
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        tokens = _repeated(64, generator)
        logits = model(tokens).logits[:, PERIOD - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, PERIOD:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < final_loss:
            return OLMoCausalLM(model)
    raise AssertionError("the planted task was not learnt")


@pytest.fixture(scope="module")
def copier(make_olmo: Callable[..., OLMo]) -> OLMoCausalLM:
    """It copies, and is sure of it."""
    return _trained_copier(make_olmo, final_loss=0.02)


def _own_contexts(copier: OLMoCausalLM) -> list[FarContext]:
    tokens = _test_sequences()
    return [
        far_contexts(Measurement(copier, LENGTHS, Batching(4096)), chunk, null_chunk)[OWN]
        for chunk, null_chunk in zip(tokens[:-1], tokens[1:], strict=True)
    ]


@pytest.mark.parametrize(
    "rule", ["leave_one_out", "add_one_in", "greedy", "attention", "leave_one_out_divergence"]
)
def test_rules_return_exactly_the_planted_position(copier: OLMoCausalLM, rule: str) -> None:
    for context in _own_contexts(copier):
        selected = selected_positions(context, rule, 1, seed=[0])
        assert selected[:, 0].tolist() == (LENGTHS.targets_T - PERIOD).tolist()


def test_the_gradient_finds_the_planted_position_where_the_model_is_not_yet_sure(
    copier: OLMoCausalLM, make_olmo: Callable[..., OLMo]
) -> None:
    planted_T1 = (LENGTHS.targets_T - PERIOD)[:, None]
    for context in _own_contexts(_trained_copier(make_olmo, final_loss=1.0)):
        selected = selected_positions(context, "gradient", 1, seed=[0])
        assert selected.tolist() == planted_T1.tolist()
        assert (np.take_along_axis(context.influence_TF, planted_T1, axis=1) > 0).all()
        assert (np.take_along_axis(-context.gate_gradient_TF, planted_T1, axis=1) > 0).all()
    # Where nearly all attention is on the token already, opening its gate further changes nothing: the
    # derivative vanishes while removal costs most. This is the rule's own limit, not an error in it.
    for context in _own_contexts(copier):
        influence_T1 = np.take_along_axis(context.influence_TF, planted_T1, axis=1)
        estimate_T1 = np.take_along_axis(-context.gate_gradient_TF, planted_T1, axis=1)
        assert (influence_T1 > 4).all() and (estimate_T1 < 0.1).all()


def test_the_planted_token_restores_the_prediction_and_its_null_does_not(copier: OLMoCausalLM) -> None:
    tokens = _test_sequences()
    losses: dict[str, list[float]] = {OWN: [], OTHER_DOCUMENT: []}
    for chunk, null_chunk in zip(tokens[:-1], tokens[1:], strict=True):
        contexts = far_contexts(Measurement(copier, LENGTHS, Batching(4096)), chunk, null_chunk)
        for context in contexts.values():
            selected = {"leave_one_out": selected_positions(context, "leave_one_out", 1, seed=[0])}
            values = sparse_contexts(context, selected, {"leave_one_out": [1]})["leave_one_out"]
            losses[context.name].extend(values.losses[:, 0].tolist())
    assert np.mean(losses[OWN]) < 0.5 < 1.5 < np.mean(losses[OTHER_DOCUMENT])
