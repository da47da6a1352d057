"""Other people's methods: scores recomputed by stock models, and beside the packages that they come from."""

from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hand_made_models import EvidenceLM
from hugging_face_families import make_model
from naive_predictions import Case, Stock, naive_divergences, naive_losses, witness_and_model
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.measuring import methods
from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, LeaveOneOut, far_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import selected_positions
from pipeline.models.export import as_hugging_face
from pipeline.models.huggingface import HuggingFaceCausalLM
from pipeline.models.interface import CausalLM
from pipeline.models.olmo import OLMoCausalLM

S, L, M = 3, 16, 5  # s < m: an early target's own rows are far context of a late one
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
TARGETS = range(L - M, L)
TOLERANCE = 2e-5
GENERATOR = np.random.default_rng(23)
CHUNKS = {name: GENERATOR.integers(0, 48, L) for name in ("own", "other_document", "first", "second")}
FILLS: list[tuple[str, ...]] = [(), ("first", "second")]
"""What stands where tokens are taken away: nothing, or other documents'."""


def contexts_of(
    lm: CausalLM, fills: tuple[str, ...] = (), size: int = 60, **options: Any
) -> dict[str, FarContext]:
    return far_contexts(
        Measurement(lm, LENGTHS, Batching(size), **options), CHUNKS["own"], CHUNKS["other_document"],
        background_ids_BL=np.stack([CHUNKS[fill] for fill in fills]) if fills else None,
    )  # fmt: skip


def case(name: str, target: int, kept_F: np.ndarray, fill: str | None) -> Case:
    """The far tokens that are kept; the others are another document's, or not there."""
    tokens, num_far = CHUNKS["own"].copy(), target - S
    other = tokens if fill is None else CHUNKS[fill]
    tokens[:num_far] = np.where(kept_F, CHUNKS[name][:num_far], other[:num_far])
    far = np.nonzero(kept_F)[0] if fill is None else range(num_far)
    return tokens, [*far, *range(num_far, target)]


def naive(stock: Stock, name: str, target: int, kept_NF: np.ndarray, fills: tuple[str, ...]) -> np.ndarray:
    """Losses and divergences with each subset of the far context, means over fills: [2, N]."""
    values = []
    for fill in fills or (None,):
        cases = [case(name, target, kept_F, fill) for kept_F in kept_NF]
        reference = CHUNKS["own"], range(target)
        losses = naive_losses(stock, target, cases)
        values.append((losses, naive_divergences(stock, target, reference, cases)))
    return np.mean(values, axis=0)


@pytest.mark.parametrize("family", ["olmo", "gemma2", "bos gemma3"])
@pytest.mark.parametrize("fills", FILLS)
def test_context_length_probing_is_what_each_start_changes(
    make_olmo: Callable[..., OLMo], family: str, fills: tuple[str, ...]
) -> None:
    stock, lm = witness_and_model(family, 9, make_olmo)
    for name, context in contexts_of(lm, fills).items():
        found = methods.measured_from_each_start(context)
        probing, of_divergences = methods.context_length_probing(context)
        for index, target in enumerate(TARGETS):
            num_far = target - S
            kept_EF = np.arange(num_far) >= np.arange(num_far + 1)[:, None]
            expected = naive(stock, name, target, kept_EF, fills)
            for values_TE, naive_E in zip(found, expected, strict=True):
                np.testing.assert_allclose(values_TE[index, : num_far + 1], naive_E, atol=TOLERANCE)
                assert np.isnan(values_TE[index, num_far + 1 :]).all()
            np.testing.assert_allclose(probing[index, :num_far], np.diff(expected[0]), atol=2 * TOLERANCE)
        # The scores add up to what the far context gives.
        baseline = context.background or context.short
        gains_T = baseline.losses.astype(np.float64) - context.long_losses_T
        np.testing.assert_allclose(np.nansum(probing, axis=1), gains_T, atol=1e-12)
        if name == "own":  # whose divergence under the long context is 0
            np.testing.assert_allclose(np.nansum(of_divergences, axis=1), baseline.divergences, atol=1e-5)
        for size in (1, 10_000):
            again = methods.measured_from_each_start(contexts_of(lm, fills, size)[name]).losses
            np.testing.assert_allclose(found.losses, again, atol=TOLERANCE)


def test_probing_a_far_context_of_one_token_has_the_whole_gain(make_olmo: Callable[..., OLMo]) -> None:
    lengths = ContextLengths(short_context_length=3, long_context_length=5, targets_per_chunk=1)
    measurement = Measurement(OLMoCausalLM(make_olmo(seed=9)), lengths, Batching(1))
    own = far_contexts(measurement, np.arange(5), np.arange(5))["own"]
    gain = float(own.short.losses[0]) - float(own.long_losses_T[0])
    assert methods.context_length_probing(own).losses.tolist() == [[gain]]


def is_optimal(kept_NF: np.ndarray, outputs_N: np.ndarray, weights_F: np.ndarray) -> bool:
    """Whether the weights of standardized features satisfy the conditions of the Lasso's optimum."""
    spread_F = kept_NF.std(0)
    features_NF = (kept_NF - kept_NF.mean(0)) / np.where(spread_F, spread_F, 1)
    scaled_F = weights_F * np.where(spread_F, spread_F, 1)
    rest_N = outputs_N - outputs_N.mean() - features_NF @ scaled_F
    slopes_F, is_there_F = features_NF.T @ rest_N / len(outputs_N), scaled_F != 0
    return bool(
        np.allclose(slopes_F[is_there_F], methods.PENALTY * np.sign(scaled_F[is_there_F]), atol=2e-3)
        and (abs(slopes_F[~is_there_F]) <= methods.PENALTY + 2e-3).all()
    )


@pytest.mark.parametrize("fills", [(), ("first",)])
def test_the_surrogate_is_the_lasso_of_what_stock_models_say(
    make_olmo: Callable[..., OLMo], fills: tuple[str, ...]
) -> None:
    stock, lm = witness_and_model("olmo", 6, make_olmo)
    for name, context in contexts_of(lm, fills, 200, num_subsets=12, kept_fraction=0.7).items():
        kept_NF = methods.subsets_of(context)
        found = methods.surrogate(context)
        for index, target in enumerate(TARGETS):
            kept = kept_NF[:, : target - S]
            losses_N, divergences_N = naive(stock, name, target, kept, fills)
            probs_N = np.exp(-losses_N)
            for weights_TF, outputs_N in zip(
                found, (np.log(probs_N / (1 - probs_N)), -divergences_N), strict=True
            ):
                weights_F = weights_TF[index, : target - S]
                assert is_optimal(kept, outputs_N, weights_F), (name, target)
                assert (weights_F != 0).any() and not is_optimal(kept, outputs_N, 1.3 * weights_F)
                assert np.isnan(weights_TF[index, target - S :]).all()


def test_the_surrogate_tells_the_tokens_that_add_to_the_logit() -> None:
    # One target at 30 of far tokens 0 to 27, which are all different: 3 adds 4 to the answer's logit, 8 takes
    # 2 away, 20 adds 1. The answer's logit is that of its probability plus ln 31, as 31 others have logit 0.
    worth = {3: 4.0, 8: -2.0, 20: 1.0}
    model = EvidenceLM(32, 31, lambda seen: sum(worth.get(token, 0) for token in seen))
    lengths = ContextLengths(short_context_length=2, long_context_length=31, targets_per_chunk=1)
    chunk = np.append(np.arange(30), 31)
    own = far_contexts(Measurement(model, lengths, Batching(1000)), chunk, np.full(31, 30))["own"]
    weights_F = methods.surrogate(own).losses[0]
    # A penalty of 0.01 on features that spread by a half each shrinks weights by 0.02.
    assert [weights_F[token] for token in worth] == pytest.approx([3.98, -1.98, 0.98], abs=0.02)
    assert np.abs(np.delete(weights_F, list(worth))).max() < 0.01
    assert selected_positions(own, "surrogate", 2, seed=[0]).tolist() == [[3, 20]]
    assert selected_positions(own, "surrogate_divergence", 1, seed=[0]).tolist() == [[3]]


def test_subsets_hold_the_share_that_is_asked_for_and_logits_are_by_hand(
    make_olmo: Callable[..., OLMo],
) -> None:
    def subsets(**options: Any) -> np.ndarray:
        return methods.subsets_of(contexts_of(OLMoCausalLM(make_olmo()), num_subsets=4000, **options)["own"])

    kept_NF = subsets(kept_fraction=0.8)
    assert kept_NF.shape == (4000, L - 1 - S)
    assert (abs(kept_NF.mean(0) - 0.8) < 5 * np.sqrt(0.16 / 4000)).all()
    assert (kept_NF == subsets(kept_fraction=0.8)).all()
    assert (kept_NF != subsets(kept_fraction=0.8, seed=(1,))).any()
    losses = np.array([np.log(2), np.log(4), 30.0, 0.0], dtype=np.float32)
    found = methods.logits_of_losses(losses)
    np.testing.assert_allclose(found[:3], [0, -np.log(3), -30], atol=1e-6)
    assert 16 < found[3] < 17  # float32 tells no surer prediction


def test_planted_weights_of_heads_are_found_by_a_ridge_regression_within_targets(
    make_olmo: Callable[..., OLMo],
) -> None:
    lm, num_heads = OLMoCausalLM(make_olmo(seed=2)), 8
    planted_H = np.array([0.5, -1.0, 2.0, 0.0, 0.0, 3.0, -0.25, 1.0])
    planted = planted_H, np.roll(planted_H, 3)
    contexts, rows, outcomes = [], [], []
    for seed in range(8):
        own, other = np.random.default_rng(seed).integers(0, 48, (2, L))
        context = far_contexts(Measurement(lm, LENGTHS, Batching(200)), own, other)["own"]
        heads_HTF = methods.attention_of_heads(context).astype(np.float64)
        is_far_TF = np.arange(heads_HTF.shape[2]) < context.num_far_tokens_T[:, None]
        effects = [
            np.where(is_far_TF, 7 + np.tensordot(weights_H, heads_HTF, axes=1), np.nan)
            for weights_H in planted
        ]
        context.__dict__["_leave_one_out"] = (LeaveOneOut(*effects),) * 2
        contexts.append(context)
        for index, num_far in enumerate(context.num_far_tokens_T):
            heads_FH, effects_F = heads_HTF[:, index, :num_far].T, effects[0][index, :num_far]
            rows.append((heads_FH - heads_FH.mean(0)) / np.sqrt(num_far))
            outcomes.append((effects_F - effects_F.mean()) / np.sqrt(num_far))
    found = methods.fitted_head_weights(contexts)
    for found_H, planted_H in zip(found, planted, strict=True):
        assert np.corrcoef(found_H, planted_H)[0, 1] > 0.99
    features = np.concatenate(rows)
    ridge = np.sqrt(methods.RIDGE * (features**2).sum() / num_heads)
    features = np.concatenate([features, ridge * np.eye(num_heads)])
    expected, *_ = np.linalg.lstsq(features, np.concatenate([*outcomes, np.zeros(num_heads)]), rcond=None)
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    with pytest.raises(InputError, match="'learned_attention' has no weights of heads for this model"):
        methods.learned_attention(contexts[0])


@pytest.mark.parametrize("family", ["olmo", "llama", "gemma3", "gpt2", "opt"])
def test_gradients_by_embeddings_are_finite_differences(
    make_olmo: Callable[..., OLMo], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("captum")
    is_olmo, num_steps = family == "olmo", 7
    monkeypatch.setattr(methods, "NUM_INTEGRATION_STEPS", num_steps)
    lm = OLMoCausalLM(make_olmo(seed=5)) if is_olmo else HuggingFaceCausalLM(make_model(family, 5))
    stock = (make_olmo(seed=5) if is_olmo else make_model(family, 5, attention="eager")).double()
    embedding = stock.transformer.wte if is_olmo else stock.get_input_embeddings()

    @torch.inference_mode()
    def log_probs(tokens_S: torch.Tensor, sizes_BS: torch.Tensor, answer: int) -> np.ndarray:
        """ln p of the answer where embeddings are so large: [B]."""
        embedded_BSD = sizes_BS[..., None] * embedding(tokens_S)
        if is_olmo:
            logits = stock(tokens_S.expand(len(sizes_BS), -1), input_embeddings=embedded_BSD).logits
        else:
            logits = stock(inputs_embeds=embedded_BSD, use_cache=False).logits
        return logits[:, -1].log_softmax(-1)[:, answer].numpy()

    def slopes(tokens_S: torch.Tensor, size: float, answer: int) -> np.ndarray:
        """The derivative by the size of each token's embedding, all being `size` times their own: [S]."""
        step = 3e-3 * size  # eager attention has its softmax in single precision; small embeddings are steep
        changes_SS = step * torch.eye(len(tokens_S), dtype=torch.float64)
        more, less = (log_probs(tokens_S, size + sign * changes_SS, answer) for sign in (1, -1))
        return (more - less) / (2 * step)

    places, weights = np.polynomial.legendre.leggauss(num_steps)
    for name, context in contexts_of(lm, size=200).items():
        at_own, on_the_way = methods.input_x_gradient(context), methods.integrated_gradients(context)
        for index, target in list(enumerate(TARGETS))[-2:]:
            num_far, answer = target - S, int(CHUNKS["own"][target])
            tokens = np.concatenate([CHUNKS[name][:num_far], CHUNKS["own"][num_far:target]])
            text = torch.tensor(tokens)
            of_way = [slopes(text, (1 + place) / 2, answer) for place in places]
            for found_TF, naive_S in (
                (at_own, slopes(text, 1.0, answer)),
                (on_the_way, np.average(of_way, axis=0, weights=weights)),
            ):
                # OPT's ReLU has kinks, where a finite difference is none.
                tolerance = (0.03 if family == "opt" else 0.003) * abs(naive_S).max()
                np.testing.assert_allclose(found_TF[index, :num_far], naive_S[:num_far], atol=tolerance)
                assert np.isnan(found_TF[index, num_far:]).all()
        assert min(np.nanstd(at_own), np.nanstd(on_the_way)) > 0.02


UNKNOWN = 0
"""The token whose embedding is 0, which is what inseq begins its way at."""


@pytest.fixture(scope="module")
def twins(make_olmo: Callable[..., OLMo]) -> tuple[FarContext, Any, np.ndarray]:
    """A far context of one target, a stock Hugging Face model of the same weights, and the text."""
    model, chunk = make_olmo(seed=8), np.random.default_rng(2).integers(2, 48, L)
    with torch.no_grad():
        model.transformer.wte.weight[UNKNOWN] = 0
    lengths = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=1)
    measurement = Measurement(OLMoCausalLM(model), lengths, Batching(500))
    twin = as_hugging_face(model)
    twin.config.bos_token_id = UNKNOWN  # inseq wants one, and puts it nowhere
    return far_contexts(measurement, chunk, chunk[::-1].copy())["own"], twin, chunk


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
    ours_F = methods.sparse_weights(kept_NF, outputs_N)
    np.testing.assert_allclose(ours_F, theirs_F, atol=2e-3)
    assert 5 < (ours_F != 0).sum() < 64


@pytest.mark.parametrize("method", ["input_x_gradient", "integrated_gradients"])
def test_inseq_tells_the_same_of_gradients(twins: tuple[FarContext, Any, np.ndarray], method: str) -> None:
    inseq = pytest.importorskip("inseq")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    own, twin, chunk = twins
    words = [f"[{token}]" for token in range(48)]
    names = dict.fromkeys(("unk_token", "pad_token", "eos_token", "bos_token"), words[UNKNOWN])
    level = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[UNKNOWN]))
    level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=level, **names)
    theirs = inseq.load_model(twin, method, tokenizer=tokenizer, device="cpu")
    text = [words[token] for token in chunk]
    options = {"n_steps": 20} if method == "integrated_gradients" else {}
    result = theirs.attribute(
        " ".join(text[:-1]), " ".join(text), attributed_fn="probability", logprob=True,
        show_progress=False, pretty_progress=False, **options,
    )  # fmt: skip
    attributions = result.sequence_attributions[0].target_attributions[: L - 1, 0]
    ours = getattr(methods, method)(own)
    np.testing.assert_allclose(ours[0], attributions.sum(-1).numpy()[: L - 1 - S], atol=2e-4)
    assert np.std(ours[0]) > 0.01


def test_captum_leaves_out_one_by_one_what_the_engine_leaves_out_together(
    twins: tuple[FarContext, Any, np.ndarray],
) -> None:
    captum = pytest.importorskip("captum.attr")
    (own, twin, chunk), target = twins, L - 1

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
