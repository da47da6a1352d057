"""What rules see that look inside: finite differences of stock models, and their attention multiplied out.

The witness is a stock model, which never leaves out a token nor reads a prefix. Attention is computed from
the queries and keys that its library hands to an attention function of ours.

Shapes: B gates, S rows, F distant tokens, H heads of a layer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hugging_face_families import FAMILIES, VOCABULARY_SIZE, make_model, windowed
from measured_documents import with_far
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
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=3)
OWN, NULL = np.random.default_rng(11).integers(0, VOCABULARY_SIZE, (2, L))
CHUNKS = {"own": OWN, "other_document": NULL}
STEP = 5e-3
NUM_ANSWERS = 3
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


@dataclass
class Family:
    """A model under test, and what a stock model of the same weights says."""

    lm: CausalLM
    logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """(texts [B, S], masks to be added [B, 1, S, S]) -> [B, S, V]."""
    attention: Callable[[torch.Tensor], list[np.ndarray]]
    """A text [S] -> that of every layer, [H, S, S]."""
    tolerance: float = TOLERANCE
    bos: tuple[int, ...] = ()
    """Before every text; no gate is in front of it, and no place is its own."""

    def contexts(self) -> dict[str, FarContext]:
        lm = self.lm.led_by(self.bos)
        return far_contexts(lm, LENGTHS, Batching(100), OWN, NULL, seed=(2, 7))

    def behind_bos(self, text_S: np.ndarray) -> torch.Tensor:
        return torch.tensor([*self.bos, *text_S])

    @torch.inference_mode()
    def attended(self, text_S: np.ndarray) -> list[np.ndarray]:
        """That of every layer to the text's own tokens, [H, S, S]."""
        num = len(self.bos)
        return [weights_HSS[:, num:, num:] for weights_HSS in self.attention(self.behind_bos(text_S))]

    @torch.inference_mode()
    def slopes(self, text_S: np.ndarray, num_far: int, answer: int) -> np.ndarray:
        """The derivative of the loss by the gate of each distant token: float64 [F].

        Gates multiply exp(score) of edges into a row.
        """
        read_S = self.behind_bos(text_S)
        changes_FS = STEP * torch.eye(len(read_S), dtype=torch.float64)[len(self.bos) :][:num_far]
        gates_B11S = 1 + torch.cat([changes_FS, -changes_FS])[:, None, None]
        logits_BSV = self.logits(read_S.expand(2 * num_far, -1), gates_B11S.log() + hidden(len(read_S)))
        losses_B = -logits_BSV[:, -1].double().log_softmax(-1)[:, answer].numpy()
        opened, closed = losses_B.reshape(2, num_far)
        return (opened - closed) / (2 * STEP)


def seen(name: str, target: int) -> np.ndarray:
    """The tokens before the target as it sees them: its own, or with the other document's before t - s."""
    return with_far(OWN, CHUNKS[name], target, S)[:target]


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

    def logits(text_BS: torch.Tensor, mask_B1SS: torch.Tensor) -> torch.Tensor:
        return stock(text_BS, attention_bias=mask_B1SS).logits

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

    return Family(OLMoCausalLM(make_olmo(seed=3, n_kv_heads=2)), logits, attention)


def of_hugging_face(name: str) -> Family:
    stock = make_model(name, 4, attention="eager").double()

    def logits(text_BS: torch.Tensor, mask_B1SS: torch.Tensor) -> torch.Tensor:
        return stock(
            input_ids=text_BS,
            position_ids=torch.arange(text_BS.shape[1]).expand(len(text_BS), -1),
            attention_mask=windowed(stock, mask_B1SS),
            use_cache=False,
        ).logits

    def attention(text_S: torch.Tensor) -> list[np.ndarray]:
        layers: list[np.ndarray] = []

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

        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(ALL_ATTENTION_FUNCTIONS, "witness", witness)
            stock.set_attn_implementation("witness")
            logits(text_S[None], hidden(len(text_S))[None, None])
            stock.set_attn_implementation("eager")
        return layers

    tolerance = TOLERANCE_AT_KINKS if name in ("opt", "nemotron") else TOLERANCE
    return Family(HuggingFaceCausalLM(make_model(name, 4)), logits, attention, tolerance)


@pytest.fixture(scope="module", params=INSPECTED)
def family(request: pytest.FixtureRequest, make_olmo: Callable[..., OLMo]) -> Family:
    name = request.param.removeprefix("bos ")
    plain = of_olmo(make_olmo) if name == "olmo" else of_hugging_face(name)
    return plain if name == request.param else replace(plain, bos=(7,))


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
        for index, target in enumerate(LENGTHS.targets_T):
            ids = [int(OWN[target]), *(int(drawn_T[index]) for drawn_T in answers)]
            own_F, *drawn = (family.slopes(seen(name, target), target - S, answer) for answer in ids)
            for (values_TF, tolerance), naive_F in zip(found, (own_F, np.square(drawn).mean(0)), strict=True):
                atol = tolerance * abs(naive_F).max()
                np.testing.assert_allclose(values_TF[index, : target - S], naive_F, rtol=0, atol=atol)
                assert np.isnan(values_TF[index, target - S :]).all(), (name, target)
        assert np.nanstd(rules.gradient(context)) > 0.005


def test_attention_and_rollout_are_of_the_stock_models_attention(family: Family) -> None:
    for name, context in family.contexts().items():
        found = rules.attention(context), rules.attention_rollout(context)
        for index, target in enumerate(LENGTHS.targets_T):
            first_HSS, last_HSS = family.attended(seen(name, target))
            halves = ((heads_HSS.mean(0) + np.eye(target)) / 2 for heads_HSS in (last_HSS, first_HSS))
            naive = np.concatenate([first_HSS, last_HSS])[:, -1].mean(0), np.matmul(*halves)[-1]
            for values_TF, naive_S in zip(found, naive, strict=True):
                own_F, beyond = np.split(values_TF[index], [target - S])
                np.testing.assert_allclose(own_F, naive_S[: target - S], atol=1e-5)
                assert np.isnan(beyond).all(), (name, target)


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
