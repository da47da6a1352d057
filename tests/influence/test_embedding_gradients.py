"""`input_x_gradient` and `integrated_gradients`: finite differences of stock models in double precision."""

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("captum")

import torch
from hugging_face_families import make_model
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.methods import input_x_gradient, integrated_gradients
from pipeline.models.huggingface import HuggingFaceCausalLM
from pipeline.models.interface import CausalLM
from pipeline.models.olmo import OLMoCausalLM

S, L, M = 3, 13, 2
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
STEP = 3e-3  # eager attention has its softmax in single precision
FAMILIES = ["olmo", "llama", "gemma3", "gpt2", "opt"]
LogProbs = Callable[[torch.Tensor, torch.Tensor, int], np.ndarray]
"""(a text [S], how large its embeddings are [B, S], the answer) -> ln p of it after the text [B]."""


@pytest.fixture(scope="module")
def chunks() -> np.ndarray:
    return np.random.default_rng(41).integers(0, 48, (2, L))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def lm(family: str, make_olmo: Callable[..., OLMo]) -> CausalLM:
    if family == "olmo":
        return OLMoCausalLM(make_olmo(seed=5))
    return HuggingFaceCausalLM(make_model(family, 5))


@pytest.fixture(scope="module")
def log_probs(family: str, make_olmo: Callable[..., OLMo]) -> LogProbs:
    is_olmo = family == "olmo"
    stock = (make_olmo(seed=5) if is_olmo else make_model(family, 5, attention="eager")).double()
    embedding = stock.transformer.wte if is_olmo else stock.get_input_embeddings()

    @torch.inference_mode()
    def of_text(tokens_S: torch.Tensor, sizes_BS: torch.Tensor, answer: int) -> np.ndarray:
        embedded_BSD = sizes_BS[..., None] * embedding(tokens_S)
        if is_olmo:
            logits = stock(tokens_S.expand(len(sizes_BS), -1), input_embeddings=embedded_BSD).logits
        else:
            logits = stock(inputs_embeds=embedded_BSD, use_cache=False).logits
        return logits[:, -1].log_softmax(-1)[:, answer].numpy()

    return of_text


def _contexts(lm: CausalLM, chunks: np.ndarray, **options: int) -> dict[str, FarContext]:
    return far_contexts(Measurement(lm, LENGTHS, Batching(200), **options), *chunks)


def _text(name: str, chunks: np.ndarray, target: int) -> torch.Tensor:
    own, other = chunks
    far = own if name == "own" else other
    return torch.tensor(np.concatenate([far[: target - S], own[target - S : target]]))


def _tolerance(family: str) -> float:
    """Of the largest slope; OPT's ReLU has kinks, where a finite difference is none."""
    return 0.03 if family == "opt" else 0.003


def _slopes(log_probs: LogProbs, tokens_S: torch.Tensor, size: float, answer: int) -> np.ndarray:
    """The derivative of ln p by the size of each token's embedding, all being `size` times their own: [S]."""
    num_rows = len(tokens_S)
    step = STEP * size  # norms make small embeddings' slopes steep
    changes_SS = step * torch.eye(num_rows, dtype=torch.float64)
    more, less = (log_probs(tokens_S, size + sign * changes_SS, answer) for sign in (1, -1))
    return (more - less) / (2 * step)


@pytest.mark.parametrize("name", ["own", "other_document"])
def test_input_x_gradient_is_the_derivative_by_the_embeddings_size(
    family: str, lm: CausalLM, log_probs: LogProbs, chunks: np.ndarray, name: str
) -> None:
    found = input_x_gradient(_contexts(lm, chunks)[name])
    for index, target in enumerate(range(L - M, L)):
        num_far, answer = target - S, int(chunks[0][target])
        slopes_S = _slopes(log_probs, _text(name, chunks, target), 1.0, answer)
        tolerance = _tolerance(family) * abs(slopes_S).max()
        np.testing.assert_allclose(found[index, :num_far], slopes_S[:num_far], atol=tolerance)
        assert np.isnan(found[index, num_far:]).all()
    assert np.nanstd(found) > 0.02


@pytest.mark.parametrize("name", ["own", "other_document"])
def test_integrated_gradients_are_the_mean_derivative_on_the_way_from_nothing(
    family: str, lm: CausalLM, log_probs: LogProbs, chunks: np.ndarray, name: str
) -> None:
    num_steps = 7
    found = integrated_gradients(_contexts(lm, chunks, num_integration_steps=num_steps)[name])
    places, weights = np.polynomial.legendre.leggauss(num_steps)
    for index, target in enumerate(range(L - M, L)):
        num_far, answer, text = target - S, int(chunks[0][target]), _text(name, chunks, target)
        slopes = [_slopes(log_probs, text, (1 + place) / 2, answer) for place in places]
        naive_S = np.average(slopes, axis=0, weights=weights)
        tolerance = _tolerance(family) * abs(naive_S).max()
        np.testing.assert_allclose(found[index, :num_far], naive_S[:num_far], atol=tolerance)
        assert np.isnan(found[index, num_far:]).all()
    assert np.nanstd(found) > 0.02
