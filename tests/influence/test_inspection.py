"""What rules see that look inside: finite differences of stock models, and their attention multiplied out.

The witness is a stock model, which never leaves out a token nor reads a prefix. Attention is computed from
the queries and keys that its library hands to an attention function of ours.

Shapes: B gates, S rows, F distant tokens, H heads of a layer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hugging_face_families import FAMILIES, VOCABULARY_SIZE, make_model, windowed
from olmo.model import OLMo, OLMoBlock
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sparsity_length.measuring import rules
from sparsity_length.measuring.contexts import Batching
from sparsity_length.measuring.far_context import FarContext, far_contexts
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.models.huggingface import HuggingFaceCausalLM, as_causal_lm
from sparsity_length.models.interface import CausalLM
from sparsity_length.models.olmo import OLMoCausalLM

S = 4
L = 24
M = 3
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
TARGETS = range(L - M, L)
GENERATOR = np.random.default_rng(11)
CHUNKS = {name: GENERATOR.integers(0, VOCABULARY_SIZE, L) for name in ("own", "other_document")}
STEP = 5e-3
NUM_ANSWERS = 3
SEED = (2, 7)
TOLERANCE = 1e-3  # of the largest derivative
TOLERANCE_AT_KINKS = 1e-2  # the ReLU of OPT has them, and the derivative of Nemotron's
# Another gate may send a token to another expert, and there a finite difference is none. Stock BLOOM and MPT
# let no attention of ours in, so no witness looks inside these.
INSPECTED = [
    "olmo",
    "llama",
    "bos gemma3",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (*sorted(FAMILIES.keys() - {"llama", "mixtral", "bloom", "mpt"}), "bos olmo")
    ),
]
BOS = 7


@dataclass
class Family:
    """A model under test, and what a stock model of the same weights says."""

    lm: CausalLM
    losses_under_gates: Callable[[torch.Tensor, int, torch.Tensor], np.ndarray]
    """(text [S], answer, gates [B, S], which multiply exp(score) of edges into a row) -> float64 [B]."""
    attention: Callable[[torch.Tensor], list[np.ndarray]]
    """A text [S] -> that of every layer, [H, S, S]."""
    tolerance: float = TOLERANCE

    def contexts(self) -> dict[str, FarContext]:
        return far_contexts(self.lm, LENGTHS, Batching(100), *CHUNKS.values(), seed=SEED)

    def slopes(self, text_S: torch.Tensor, num_far: int, answer: int) -> np.ndarray:
        """The derivative of the loss by the gate of each distant token: float64 [F]."""
        changes_FS = STEP * torch.eye(num_far, len(text_S), dtype=torch.float64)
        opened, closed = (self.losses_under_gates(text_S, answer, 1 + sign * changes_FS) for sign in (1, -1))
        return (opened - closed) / (2 * STEP)


def seen(name: str, target: int) -> torch.Tensor:
    """The tokens before the target as it sees them: its own, or with the other document's before t - s."""
    return torch.tensor(np.concatenate([CHUNKS[name][: target - S], CHUNKS["own"][target - S : target]]))


def softmax(
    query_HSE: torch.Tensor, key_HSE: torch.Tensor, softcap: float | None, sliding_window: int | None
) -> torch.Tensor:
    scores_HSS = query_HSE @ key_HSE.transpose(-1, -2)
    if softcap:
        scores_HSS = softcap * torch.tanh(scores_HSS / softcap)
    weights_HSS = scores_HSS.exp().tril()
    if sliding_window:
        weights_HSS = weights_HSS.triu(1 - sliding_window)
    return weights_HSS / weights_HSS.sum(-1, keepdim=True)


def hidden(num_rows: int) -> torch.Tensor:
    """A mask to be added, of the rows behind each row."""
    return torch.full((num_rows, num_rows), -1e30, dtype=torch.float64).triu(1)


def of_olmo(make_olmo: Callable[..., OLMo]) -> Family:
    stock = make_olmo(seed=3, n_kv_heads=2).double()

    @torch.inference_mode()
    def losses(text_S: torch.Tensor, answer: int, gates_BS: torch.Tensor) -> np.ndarray:
        bias_B1SS = (gates_BS.log()[:, None] + hidden(len(text_S)))[:, None]
        logits = stock(text_S.expand(len(gates_BS), -1), attention_bias=bias_B1SS).logits
        return -logits[:, -1].double().log_softmax(-1)[:, answer].numpy()

    @torch.inference_mode()
    def attention(text_S: torch.Tensor) -> list[np.ndarray]:
        layers: list[np.ndarray] = []
        attend = OLMoBlock._scaled_dot_product_attention

        def note(block: OLMoBlock, q: torch.Tensor, k: torch.Tensor, *rest: Any, **more: Any) -> Any:
            layers.append(softmax(q[0] / math.sqrt(8), k[0].repeat_interleave(2, 0), None, None).numpy())
            return attend(block, q, k, *rest, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OLMoBlock, "_scaled_dot_product_attention", note)
            stock(text_S[None])
        return layers

    return Family(OLMoCausalLM(make_olmo(seed=3, n_kv_heads=2)), losses, attention)


def of_hugging_face(name: str) -> Family:
    stock = make_model(name, 4, attention="eager").double()
    layers = list[np.ndarray]()

    def logits_of(text_BS: torch.Tensor, mask_B1SS: torch.Tensor) -> torch.Tensor:
        positions_BS = torch.arange(text_BS.shape[1]).expand(len(text_BS), -1)
        return stock(
            input_ids=text_BS,
            position_ids=positions_BS,
            attention_mask=windowed(stock, mask_B1SS),
            use_cache=False,
        ).logits

    @torch.inference_mode()
    def losses(text_S: torch.Tensor, answer: int, gates_BS: torch.Tensor) -> np.ndarray:
        mask_B1SS = (gates_BS.log()[:, None] + hidden(len(text_S)))[:, None]
        logits = logits_of(text_S.expand(len(gates_BS), -1), mask_B1SS)
        return -logits[:, -1].log_softmax(-1)[:, answer].numpy()

    def witness(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        sliding_window: int | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        num_sharing = query.shape[1] // key.shape[1]
        key, value = (shared[0].repeat_interleave(num_sharing, 0) for shared in (key, value))
        query_HSE = query[0] * (scaling or 1 / math.sqrt(query.shape[-1]))
        weights_HSS = softmax(query_HSE, key, softcap, sliding_window)
        layers.append(weights_HSS.numpy())
        return (weights_HSS @ value).transpose(0, 1)[None], None

    @torch.inference_mode()
    def attention(text_S: torch.Tensor) -> list[np.ndarray]:
        layers.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(ALL_ATTENTION_FUNCTIONS, "witness", witness)
            stock.set_attn_implementation("witness")
            logits_of(text_S[None], hidden(len(text_S))[None, None])
            stock.set_attn_implementation("eager")
        return list(layers)

    tolerance = TOLERANCE_AT_KINKS if name in ("opt", "nemotron") else TOLERANCE
    return Family(HuggingFaceCausalLM(make_model(name, 4)), losses, attention, tolerance)


def behind_bos(family: Family) -> Family:
    """The model that reads BOS before every text; no gate is in front of it, and no place is its own."""

    def losses(text_S: torch.Tensor, answer: int, gates_BS: torch.Tensor) -> np.ndarray:
        gates_BS = torch.nn.functional.pad(gates_BS, (1, 0), value=1.0)
        return family.losses_under_gates(torch.cat([torch.tensor([BOS]), text_S]), answer, gates_BS)

    def attention(text_S: torch.Tensor) -> list[np.ndarray]:
        layers = family.attention(torch.cat([torch.tensor([BOS]), text_S]))
        return [weights_HSS[:, 1:, 1:] for weights_HSS in layers]

    return Family(family.lm.led_by([BOS]), losses, attention, family.tolerance)


@pytest.fixture(scope="module", params=INSPECTED)
def family(request: pytest.FixtureRequest, make_olmo: Callable[..., OLMo]) -> Family:
    name = request.param.removeprefix("bos ")
    plain = of_olmo(make_olmo) if name == "olmo" else of_hugging_face(name)
    return behind_bos(plain) if name != request.param else plain


def test_every_gate_gradient_and_information_is_of_finite_differences(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "NUM_SAMPLED_ANSWERS", NUM_ANSWERS)
    for name, context in family.contexts().items():
        answers = rules.sampled_answers(context.predictions, NUM_ANSWERS, context.generator(2))
        found = (
            (-rules.gradient(context), family.tolerance),
            (rules.gradient_divergence(context), 2 * family.tolerance),
        )
        for index, target in enumerate(TARGETS):
            ids = [int(CHUNKS["own"][target]), *(int(drawn_T[index]) for drawn_T in answers)]
            own_F, *drawn = (family.slopes(seen(name, target), target - S, answer) for answer in ids)
            for (values_TF, tolerance), naive_F in zip(found, (own_F, np.square(drawn).mean(0)), strict=True):
                atol = tolerance * abs(naive_F).max()
                np.testing.assert_allclose(values_TF[index, : target - S], naive_F, rtol=0, atol=atol)
                assert np.isnan(values_TF[index, target - S :]).all(), (name, target)
        assert np.nanstd(rules.gradient(context)) > 0.005


def test_attention_and_rollout_are_of_the_stock_models_attention(family: Family) -> None:
    for name, context in family.contexts().items():
        found = rules.attention(context), rules.attention_rollout(context)
        for index, target in enumerate(TARGETS):
            layers = family.attention(seen(name, target))
            assert len(layers) == 2
            rollout_SS = np.eye(target)
            for heads_HSS in layers:
                rollout_SS = (0.5 * heads_HSS.mean(0) + 0.5 * np.eye(target)) @ rollout_SS
            naive = np.concatenate(layers)[:, -1].mean(0), rollout_SS[-1]
            for values_TF, naive_S in zip(found, naive, strict=True):
                num_far = target - S
                np.testing.assert_allclose(values_TF[index, :num_far], naive_S[:num_far], atol=1e-5)
                assert np.isnan(values_TF[index, num_far:]).all(), (name, target)


def test_attention_sinks_are_counted() -> None:
    """Loading compares losses with those of the library's attention, which has the sinks."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "gpt_oss",
        vocab_size=VOCABULARY_SIZE,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=4,
        pad_token_id=0,
        eos_token_id=None,
        rope_parameters={"rope_theta": 1e4, "rope_type": "default"},
    )
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for layer in model.model.layers:
        layer.self_attn.sinks.data.fill_(1.0)
    as_causal_lm(model, "m", 16)
