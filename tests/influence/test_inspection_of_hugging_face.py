"""What `gradient` and `attention` rank by in Hugging Face models: finite differences and plain softmax.

The witness is the stock model, which never leaves out a token nor reads a prefix. Attention is computed from
the queries and keys that the library hands to an attention function of ours, one head at a time.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hugging_face_families import FAMILIES, VOCABULARY_SIZE, make_model
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipeline.cli import InputError
from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts, sampled_answers, selected_positions
from pipeline.measuring.flags import ContextLengths
from pipeline.models.huggingface import HuggingFaceCausalLM
from pipeline.models.interface import attention_mass

S, L, M = 4, 24, 3
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
TARGETS = range(L - M, L)
NAMES = ["own", "other_document"]
STEP = 5e-3
TOLERANCE, TOLERANCE_AT_KINKS = 1e-3, 1e-2  # of the largest derivative; OPT's ReLU has kinks
# A window as wide as the chunk is the narrowest that is accepted; its layers take their mask elsewhere.
FIELDS: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": L}, "gemma3": {"sliding_window": L}, "mistral": {"sliding_window": L},
}  # fmt: skip
# Another gate may send a token to another expert, and there a finite difference is none.
INSPECTED = sorted(FAMILIES.keys() - {"mixtral"})


@pytest.fixture(scope="module")
def chunks() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(11)
    return generator.integers(0, VOCABULARY_SIZE, L), generator.integers(0, VOCABULARY_SIZE, L)


@pytest.fixture(scope="module", params=INSPECTED)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def _model(family: str, attention: str | None = None) -> PreTrainedModel:
    return make_model(family, 4, attention=attention, **FIELDS.get(family, {}))


@pytest.fixture(scope="module")
def lm(family: str) -> HuggingFaceCausalLM:
    return HuggingFaceCausalLM(_model(family))


@pytest.fixture(scope="module")
def contexts(lm: HuggingFaceCausalLM, chunks: tuple[np.ndarray, np.ndarray]) -> dict[str, FarContext]:
    return far_contexts(Measurement(lm, LENGTHS, 100), *chunks)


def _seen(name: str, chunks: tuple[np.ndarray, np.ndarray], target: int) -> torch.Tensor:
    """The tokens before the target as it sees them: its own, or with the other document's before t - s."""
    own, other = chunks
    tokens = own if name == "own" else np.concatenate([other[: target - S], own[target - S :]])
    return torch.tensor(tokens[:target])


@torch.inference_mode()
def _losses(
    stock: PreTrainedModel, tokens_S: torch.Tensor, answer: int, gates_BS: torch.Tensor
) -> np.ndarray:
    """The loss of `answer` under each row of gates, which multiply exp(score): float64 [B]."""
    batch_size, num_rows = gates_BS.shape
    mask_B1SS = (gates_BS.log()[:, None] + _hidden(num_rows, torch.float64))[:, None]
    logits_BSV = stock(
        input_ids=tokens_S.expand(batch_size, -1),
        position_ids=torch.arange(num_rows).expand(batch_size, -1),
        attention_mask=mask_B1SS,
        use_cache=False,
    ).logits
    return -logits_BSV[:, -1].log_softmax(-1)[:, answer].numpy()


def _hidden(num_rows: int, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores for later rows to be hidden, [S, S]."""
    return torch.full((num_rows, num_rows), -1e30, dtype=dtype).triu(1)


@pytest.mark.parametrize("name", NAMES)
def test_every_gate_gradient_is_a_finite_difference(
    family: str, contexts: dict[str, FarContext], chunks: tuple[np.ndarray, np.ndarray], name: str
) -> None:
    stock = _model(family, "eager").double()
    found, tolerance = contexts[name].gate_gradient_TF, TOLERANCE_AT_KINKS if family == "opt" else TOLERANCE
    for index, target in enumerate(TARGETS):
        tokens_S, num_far = _seen(name, chunks, target), target - S
        changes_FS = STEP * torch.eye(num_far, target, dtype=torch.float64)
        answer = int(chunks[0][target])
        opened, closed = (_losses(stock, tokens_S, answer, 1 + sign * changes_FS) for sign in (1, -1))
        naive_F = (opened - closed) / (2 * STEP)
        np.testing.assert_allclose(found[index, :num_far], naive_F, atol=tolerance * abs(naive_F).max())
        assert np.isnan(found[index, num_far:]).all()
    assert np.nanstd(found) > 0.005


def test_every_information_is_the_mean_square_of_finite_differences(
    family: str, lm: HuggingFaceCausalLM, chunks: tuple[np.ndarray, np.ndarray]
) -> None:
    measurement = Measurement(lm, LENGTHS, Batching(100), num_sampled_answers=3, seed=(1,))
    own = far_contexts(measurement, *chunks)["own"]
    stock, answers = _model(family, "eager").double(), sampled_answers(own.predictions, 3, (1,))
    for index, target in enumerate(TARGETS):
        num_far, squares = target - S, []
        changes_FS = STEP * torch.eye(num_far, target, dtype=torch.float64)
        for answers_T in answers:
            opened, closed = (
                _losses(stock, _seen("own", chunks, target), int(answers_T[index]), 1 + sign * changes_FS)
                for sign in (1, -1)
            )
            squares.append(((opened - closed) / (2 * STEP)) ** 2)
        naive_F, found_F = np.mean(squares, axis=0), own.gate_information_TF[index]
        tolerance = 2 * (TOLERANCE_AT_KINKS if family == "opt" else TOLERANCE)
        np.testing.assert_allclose(found_F[:num_far], naive_F, atol=tolerance * naive_F.max())
        assert np.isnan(found_F[num_far:]).all()


@pytest.fixture
def witnessed(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Attention of the last row, [S], of every layer and head that the function "witness" is called for."""
    masses: list[np.ndarray] = []

    def witness(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attention_mask: torch.Tensor | None, scaling: float | None = None, softcap: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:  # fmt: skip
        num_heads, num_rows, width = query.shape[1:]
        scaling = scaling or 1 / math.sqrt(width)
        attended = torch.zeros(1, num_rows, num_heads, value.shape[-1])
        for head in range(num_heads):
            shared = head // (num_heads // key.shape[1])
            for row in range(num_rows):
                scores = scaling * (key[0, shared, : row + 1] @ query[0, head, row])
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                weights = scores.exp() / scores.exp().sum()
                attended[0, row, head] = weights @ value[0, shared, : row + 1]
            masses.append(weights.numpy())
        return attended, None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "witness", witness)
    return masses


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_every_attention_mass(
    family: str,
    contexts: dict[str, FarContext],
    chunks: tuple[np.ndarray, np.ndarray],
    name: str,
    witnessed: list[np.ndarray],
) -> None:
    stock = _model(family)
    stock.set_attn_implementation("witness")
    found = contexts[name].attention_TF
    for index, target in enumerate(TARGETS):
        witnessed.clear()
        stock(
            input_ids=_seen(name, chunks, target)[None],
            position_ids=torch.arange(target)[None],
            attention_mask=_hidden(target, torch.float32)[None, None],
            use_cache=False,
        )
        assert len(witnessed) == 2 * 4  # layers and heads
        num_far, naive_S = target - S, np.mean(witnessed, axis=0)
        np.testing.assert_allclose(found[index, :num_far], naive_S[:num_far], atol=1e-5)
        assert np.isnan(found[index, num_far:]).all()


def test_inspection_leaves_the_model_as_it_was(chunks: tuple[np.ndarray, np.ndarray]) -> None:
    model = _model("llama")
    lm = HuggingFaceCausalLM(model)
    arguments = (torch.tensor(chunks[0])[None], torch.arange(L)[None], None)
    rows_T = torch.tensor([0, 9, L - 1])
    before = lm.hidden_states(*arguments, None)
    mass_TS = attention_mass(lm, *arguments, rows_T)
    gradient_TS = lm.gate_gradients(*arguments, rows_T, torch.tensor([1, 2, 3]))
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(lm.hidden_states(*arguments, None), before)
    # The first row can look at itself only; whatever all gates are times, attention is the same.
    assert mass_TS[0, 0] == 1 and not gradient_TS[0].any()
    torch.testing.assert_close(mass_TS.sum(-1), torch.ones(3))
    torch.testing.assert_close(gradient_TS.sum(-1), torch.zeros(3), atol=1e-5, rtol=0)


def test_bfloat16_ranks_by_nearly_the_same_numbers(chunks: tuple[np.ndarray, np.ndarray]) -> None:
    of_dtype = {}
    for dtype in (torch.float32, torch.bfloat16):
        lm = HuggingFaceCausalLM(_model("llama").to(dtype))
        own = far_contexts(Measurement(lm, LENGTHS, 100), *chunks)["own"]
        of_dtype[dtype] = [own.gate_gradient_TF[-1], own.attention_TF[-1]]
    for fine, coarse in zip(*of_dtype.values(), strict=True):
        assert np.corrcoef(fine, coarse)[0, 1] > 0.99


def _random(model_type: str, **fields: Any) -> PreTrainedModel:
    sizes = {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **sizes, **fields)
    return AutoModelForCausalLM.from_config(config).float().eval()


def _falcon() -> PreTrainedModel:
    return _random("falcon", bos_token_id=None, eos_token_id=None)


def _gpt_oss() -> PreTrainedModel:
    model = _random(
        "gpt_oss", intermediate_size=48, num_key_value_heads=2, head_dim=8, num_local_experts=4,
        pad_token_id=0, eos_token_id=None, rope_parameters={"rope_theta": 1e4, "rope_type": "default"},
    )  # fmt: skip
    for layer in model.model.layers:
        layer.self_attn.sinks.data.fill_(1.0)
    return model


@pytest.mark.parametrize(
    ("make", "rule", "reason"),
    [
        (_falcon, "attention", "its attention is written in one form, which shows no weights"),
        (_falcon, "gradient", "its attention is written in one form, which shows no weights"),
        (_gpt_oss, "attention", "the attention of a token to those before it does not sum to 1"),
    ],
)
def test_models_that_cannot_be_looked_into(
    make: Callable[[], PreTrainedModel], rule: str, reason: str, chunks: tuple[np.ndarray, np.ndarray]
) -> None:
    model = make()
    own = far_contexts(Measurement(HuggingFaceCausalLM(model), LENGTHS, 100), *chunks)["own"]
    with pytest.raises(
        InputError,
        match=f"{type(model).__name__} cannot be looked into: {reason}; leave rule '{rule}' out.*Llama, Mis",
    ):
        selected_positions(own, rule, 2, seed=[0])


def test_masks_that_are_only_compared_have_no_derivative(
    monkeypatch: pytest.MonkeyPatch, chunks: tuple[np.ndarray, np.ndarray]
) -> None:
    model = _model("llama")
    lm, trunk = HuggingFaceCausalLM(model), model.base_model.forward

    def compares(*, attention_mask: torch.Tensor, **rest: Any) -> Any:
        least = torch.finfo(attention_mask.dtype).min
        return trunk(attention_mask=torch.where(attention_mask < 0, least, 0.0), **rest)

    monkeypatch.setattr(model.base_model, "forward", compares)
    own = far_contexts(Measurement(lm, LENGTHS, 100), *chunks)["own"]
    with pytest.raises(InputError, match="no derivative by what is added to its attention scores"):
        own.gate_gradient_TF  # noqa: B018
