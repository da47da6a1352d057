"""Our scores beside those of the packages that the methods come from, where their definitions agree.

Each is asked through its own front door, with stock Hugging Face models. What is not installed is skipped.
"""

from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.methods import sparse_weights
from pipeline.models.olmo import OLMoCausalLM

S, L, M = 3, 16, 1
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
UNKNOWN = 0
"""The token whose embedding is 0, which is what inseq begins its way at."""


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    """Stock twins of our models, and tokenizers of words such as [17], as the benchmarks have them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
        import peers

    return peers


@pytest.fixture(scope="module")
def chunk() -> np.ndarray:
    return np.random.default_rng(2).integers(2, 48, L)


@pytest.fixture(scope="module")
def model(make_olmo: Callable[..., OLMo]) -> OLMo:
    model = make_olmo(seed=8)
    with torch.no_grad():
        model.transformer.wte.weight[UNKNOWN] = 0
    return model


@pytest.fixture
def own(model: OLMo, chunk: np.ndarray) -> FarContext:
    measurement = Measurement(OLMoCausalLM(model), LENGTHS, Batching(500))
    return far_contexts(measurement, chunk, chunk[::-1].copy())["own"]


def test_context_cite_fits_the_same_weights() -> None:
    package = find_spec("context_cite")
    if package is None or not package.submodule_search_locations:
        pytest.skip("context-cite is not installed")
    # The package itself downloads data when it is imported; its solver is a file that does not.
    path = Path(package.submodule_search_locations[0]) / "solver.py"
    spec = spec_from_file_location("context_cite_solver", path)
    assert spec is not None and spec.loader is not None
    solver = module_from_spec(spec)
    spec.loader.exec_module(solver)
    generator = np.random.default_rng(0)
    kept_NF = generator.random((64, 100)) < 0.5
    worth_F = np.where(generator.random(100) < 0.1, generator.normal(0, 2, 100), 0)
    outputs_N = kept_NF @ worth_F + generator.normal(0, 0.3, 64)
    theirs_F, _ = solver.LassoRegression().fit(kept_NF, outputs_N, 1)
    ours_F, is_converged = sparse_weights(kept_NF, outputs_N)
    np.testing.assert_allclose(ours_F, theirs_F, atol=2e-3)
    assert is_converged and 5 < (ours_F != 0).sum() < 64


@pytest.mark.parametrize("method", ["input_x_gradient", "integrated_gradients"])
def test_inseq_tells_the_same_of_gradients(
    peers: ModuleType, model: OLMo, own: FarContext, chunk: np.ndarray, method: str
) -> None:
    inseq = pytest.importorskip("inseq")
    from pipeline.measuring.methods import input_x_gradient, integrated_gradients

    tokenizer = peers.word_tokenizer(48)
    theirs = inseq.load_model(peers.twin_of(model), method, tokenizer=tokenizer, device="cpu")
    words = [peers.word(token) for token in chunk]
    options = {"n_steps": 20} if method == "integrated_gradients" else {}
    result = theirs.attribute(
        " ".join(words[:-1]), " ".join(words), attributed_fn="probability", logprob=True,
        show_progress=False, pretty_progress=False, **options,
    )  # fmt: skip
    attributions = result.sequence_attributions[0].target_attributions[: L - 1, 0]
    theirs_S = attributions.sum(-1).numpy()
    ours = {"input_x_gradient": input_x_gradient, "integrated_gradients": integrated_gradients}[method](own)
    np.testing.assert_allclose(ours[0], theirs_S[: L - 1 - S], atol=2e-4)
    assert np.std(ours[0]) > 0.01


def test_captum_leaves_out_one_by_one_what_the_engine_leaves_out_together(
    peers: ModuleType, model: OLMo, own: FarContext, chunk: np.ndarray
) -> None:
    captum = pytest.importorskip("captum.attr")
    twin, target = peers.twin_of(model), L - 1

    @torch.inference_mode()
    def log_prob(present_BF: torch.Tensor) -> torch.Tensor:
        seen_BS = torch.cat([present_BF.bool(), torch.ones(len(present_BF), S, dtype=torch.bool)], dim=1)
        causal_SS = torch.ones(target, target, dtype=torch.bool).tril()
        mask_BSS = causal_SS & (seen_BS[:, None] | torch.eye(target, dtype=torch.bool))
        added = torch.zeros(mask_BSS.shape).masked_fill(~mask_BSS, torch.finfo(torch.float32).min)
        tokens = torch.tensor(chunk[:target]).expand(len(present_BF), -1)
        logits = twin(input_ids=tokens, attention_mask=added[:, None], use_cache=False).logits
        return logits[:, -1].log_softmax(-1)[:, int(chunk[target])]

    theirs_F = captum.FeatureAblation(log_prob).attribute(torch.ones(1, target - S), baselines=0)[0]
    np.testing.assert_allclose(own.influence_TF[0], theirs_F.numpy(), atol=2e-5)
