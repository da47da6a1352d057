"""Derivatives by closed gates: finite differences of stock models whose attention mixes, written out.

The witness shares no code with the engine. It reads all tokens before the target in place, in float64, with
an attention of its own: what a row gathers without the candidate, times 1 - g, and what it gathers with it,
times g. The candidate itself, and all that is no context, see nothing but themselves.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hugging_face_families import make_model
from naive_predictions import IMPLEMENTATIONS
from olmo.model import OLMo
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipeline.cli import InputError
from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts, selected_positions
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.methods import additions, derivatives_by_gates
from pipeline.models.huggingface import HuggingFaceCausalLM
from pipeline.models.interface import CausalLM
from pipeline.models.olmo import OLMoCausalLM

S, L, M = 4, 18, 2
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
NAMES = ["own", "other_document"]
STEP = 2e-3  # some of the stock models' steps are in float32 always
TOLERANCE = 5e-4  # of the largest derivative
CRITERIA = ("losses", "divergences")
Chunks = tuple[np.ndarray, np.ndarray]


class Witness:
    """ln p of the last token's successor, in float64, one candidate behind a gate in each sequence."""

    def __init__(self, name: str, make_olmo: Callable[..., OLMo]) -> None:
        self._allowed_BSS = self._candidate_B = torch.empty(0)
        self._gate = 1.0
        if name == "olmo":
            self._model: Any = make_olmo(seed=4, n_kv_heads=2).double()
            for block in self._model.transformer.blocks:
                block._scaled_dot_product_attention = lambda q, k, v, **_: self._mix(q, k, v)
            return
        self._model = make_model(name, 4).double()
        ALL_ATTENTION_FUNCTIONS.register("mixing", self._of_library)
        self._model.set_attn_implementation("mixing")

    def _of_library(
        self, _: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attention_mask: torch.Tensor | None, scaling: float | None = None, softcap: float | None = None,
        **__: Any,
    ) -> tuple[torch.Tensor, None]:  # fmt: skip
        return self._mix(query, key, value, scaling, softcap).transpose(1, 2), None

    def _mix(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        scaling: float | None = None, softcap: float | None = None,
    ) -> torch.Tensor:  # fmt: skip
        sharing = query.shape[1] // key.shape[1]
        key, value = (part.double().repeat_interleave(sharing, 1) for part in (key, value))
        scores = query.double() @ key.transpose(-1, -2) * (scaling or 1 / math.sqrt(query.shape[-1]))
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        is_candidate_BS = torch.arange(scores.shape[-1]) == self._candidate_B[:, None]
        is_edge_BSS = is_candidate_BS[:, None] & ~is_candidate_BS[:, :, None]
        gathered = [
            scores.masked_fill(~allowed_BSS[:, None], -math.inf).softmax(-1) @ value
            for allowed_BSS in (self._allowed_BSS & ~is_edge_BSS, self._allowed_BSS)
        ]
        return (1 - self._gate) * gathered[0] + self._gate * gathered[1]

    @torch.inference_mode()
    def log_probs(
        self,
        tokens_L: np.ndarray,
        target: int,
        contexts: Sequence[Sequence[int]],
        candidates: Sequence[int],
        gate: float,
    ) -> np.ndarray:
        """One row a candidate and its context: [N, V]."""
        is_seen_BS = torch.zeros(len(candidates), target, dtype=torch.bool)
        for place, context in enumerate(contexts):
            is_seen_BS[place, list(context)] = True
        is_context_BS = is_seen_BS.clone()
        is_seen_BS[range(len(candidates)), list(candidates)] = True
        causal_SS = torch.ones(target, target, dtype=torch.bool).tril()
        itself_SS = torch.eye(target, dtype=torch.bool)
        self._allowed_BSS = (is_seen_BS[:, None] & is_context_BS[:, :, None] & causal_SS) | itself_SS
        self._candidate_B, self._gate = torch.tensor(candidates), gate
        rows_BS = torch.tensor(tokens_L[:target]).expand(len(candidates), -1)
        return self._model(rows_BS).logits[:, -1].double().log_softmax(-1).numpy()


def witness_and_model(name: str, make_olmo: Callable[..., OLMo]) -> tuple[Witness, CausalLM]:
    if name == "olmo":
        return Witness(name, make_olmo), OLMoCausalLM(make_olmo(seed=4, n_kv_heads=2))
    return Witness(name, make_olmo), HuggingFaceCausalLM(make_model(name, 4))


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def implementation(
    request: pytest.FixtureRequest, make_olmo: Callable[..., OLMo]
) -> tuple[Witness, CausalLM]:
    return witness_and_model(request.param, make_olmo)


@pytest.fixture(scope="module", params=["olmo", "llama"])
def one_of_each(request: pytest.FixtureRequest, make_olmo: Callable[..., OLMo]) -> tuple[Witness, CausalLM]:
    return witness_and_model(request.param, make_olmo)


@pytest.fixture(scope="module")
def chunks() -> Chunks:
    generator = np.random.default_rng(23)
    return generator.integers(0, 48, L), generator.integers(0, 48, L)


def contexts(lm: CausalLM, chunks: Chunks, num_candidates: int | None = None) -> dict[str, FarContext]:
    return far_contexts(Measurement(lm, LENGTHS, Batching(100), num_candidates=num_candidates), *chunks)


def seen(name: str, chunks: Chunks, target: int) -> np.ndarray:
    """The chunk as the target sees it: its own, or with the other document's tokens before t - s."""
    own, other = chunks
    return own if name == "own" else np.concatenate([other[: target - S], own[target - S :]])


class Slopes:
    """What the gates of a target's candidates do to either criterion, by the witness."""

    def __init__(self, witness: Witness, chunks: Chunks, name: str, target: int) -> None:
        self._witness, self._tokens_L, self.target = witness, seen(name, chunks, target), target
        everything = range(target)
        self._long_V = witness.log_probs(chunks[0], target, [everything], [0], 1.0)[0]

    def of(self, criterion: str, chosen: Sequence[int], candidates: Sequence[int]) -> np.ndarray:
        """Finite differences of the fourth order at gate 0, beside the chosen: [N]."""
        contexts = [chosen] * len(candidates)
        far, near, near_below, far_below = (
            self._values(criterion, contexts, candidates, step * STEP) for step in (2, 1, -1, -2)
        )
        return (8 * (near - near_below) - (far - far_below)) / (12 * STEP)

    def open(self, criterion: str, chosen: Sequence[int], candidates: Sequence[int]) -> np.ndarray:
        """What the criterion is with each candidate seen, as it is among those before it: [N]."""
        return self._values(criterion, [[*chosen, position] for position in candidates], candidates, 1.0)

    def _values(
        self, criterion: str, far: Sequence[Sequence[int]], candidates: Sequence[int], gate: float
    ) -> np.ndarray:
        contexts = [[*positions, *range(self.target - S, self.target)] for positions in far]
        log_probs_NV = self._witness.log_probs(self._tokens_L, self.target, contexts, candidates, gate)
        if criterion == "losses":
            return -log_probs_NV[:, self._tokens_L[self.target]]
        return (np.exp(self._long_V) * (self._long_V - log_probs_NV)).sum(-1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("criterion", CRITERIA)
def test_every_derivative_is_a_finite_difference(
    implementation: tuple[Witness, CausalLM], chunks: Chunks, name: str, criterion: Any
) -> None:
    witness, lm = implementation
    context = contexts(lm, chunks)[name]
    for chosen in ([], [9, 3]):
        found_TF = derivatives_by_gates(context, criterion, np.tile(np.array(chosen, dtype=np.int64), (M, 1)))
        for index, target in enumerate(range(L - M, L)):
            candidates = [position for position in range(target - S) if position not in chosen]
            expected = Slopes(witness, chunks, name, target).of(criterion, chosen, candidates)
            tolerance = TOLERANCE * abs(expected).max()
            np.testing.assert_allclose(found_TF[index, candidates], expected, atol=tolerance)
            assert np.isnan(found_TF[index]).sum() == found_TF.shape[1] - len(candidates)
        assert np.nanstd(found_TF) > 0.02


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("num_candidates", [1, 6])
def test_the_best_of_those_that_the_screen_puts_first(
    one_of_each: tuple[Witness, CausalLM], chunks: Chunks, name: str, criterion: Any, num_candidates: int
) -> None:
    witness, lm = one_of_each
    context = contexts(lm, chunks, num_candidates)[name]
    suffix = "" if criterion == "losses" else "_divergence"
    greedy_TK = selected_positions(context, f"greedy{suffix}", 3, seed=[0])
    for index, target in enumerate(range(L - M, L)):
        slopes, chosen = Slopes(witness, chunks, name, target), list[int]()
        for step in range(3):
            candidates = [position for position in range(target - S) if position not in chosen]
            order = np.argsort(slopes.of(criterion, chosen, candidates))
            tried = [candidates[place] for place in order[:num_candidates]]
            values = slopes.open(criterion, chosen, tried)
            if step == 0:
                found_F = additions(context, criterion)[index]
                np.testing.assert_allclose(found_F[tried], values, atol=2e-5)
                assert np.isnan(found_F).sum() == len(found_F) - len(tried)
            chosen.append(tried[int(np.argmin(values))])
        assert greedy_TK[index].tolist() == chosen


@pytest.mark.parametrize("rule", ["greedy", "greedy_divergence", "add_one_in", "add_one_in_divergence"])
def test_with_all_candidates_nothing_is_screened(
    one_of_each: tuple[Witness, CausalLM], chunks: Chunks, rule: str
) -> None:
    lm = one_of_each[1]
    for name in NAMES:
        exact, screened = (
            selected_positions(contexts(lm, chunks, number)[name], rule, 4, seed=[0])
            for number in (None, L - 1 - S)
        )
        assert exact.tolist() == screened.tolist()


def test_a_model_that_cannot_be_looked_into_is_refused(
    chunks: Chunks, make_olmo: Callable[..., OLMo]
) -> None:
    class Closed:
        def __init__(self, lm: CausalLM) -> None:
            self.read, self.hidden_states, self.logits = lm.read, lm.hidden_states, lm.logits
            self.vocabulary_size, self.device, self.sequence_bytes = (
                lm.vocabulary_size, lm.device, lm.sequence_bytes,
            )  # fmt: skip

    own = contexts(Closed(OLMoCausalLM(make_olmo())), chunks, 3)["own"]
    with pytest.raises(
        InputError, match="--num-candidates looks inside the model, which Closed does not offer"
    ):
        selected_positions(own, "greedy", 2, seed=[0])
