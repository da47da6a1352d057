"""What stock models predict under chosen contexts: the witness of the brute-force tests.

It shares no code with the engine. It never removes a token nor chooses a position ID: stock OLMo, or the
stock Hugging Face model with eager attention, reads all tokens before the target in place, and attention
edges into the tokens outside the context are cut. Windows of layers that slide are cut by the library.

Shapes: N cases, S rows (the tokens before the target), V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from hugging_face_families import make_model
from olmo.model import OLMo, alibi_attention_bias
from transformers import PreTrainedModel

from sparsity_length.models.huggingface import HuggingFaceCausalLM
from sparsity_length.models.interface import CausalLM
from sparsity_length.models.olmo import OLMoCausalLM
from sparsity_length.pages.explained import Explanation

IMPLEMENTATIONS = ("olmo", "olmo alibi", "llama", "gpt_neox", "gemma2", "olmo3", "gpt2", "bloom", "mpt")
WITH_BOS = ("bos olmo", "bos gemma3", "2 bos gpt2")
"""Models to which beginning-of-text tokens belong, in every context."""

Stock = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(int64 [N, S], bool [N, S, S]: which row sees which) -> logits [N, S, V]."""
Case = tuple[np.ndarray, Iterable[int]]
"""A chunk's tokens, and the positions that are seen of them."""


def stock_olmo(model: OLMo) -> Stock:
    def logits(token_ids: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        bias = allowed[:, None]
        if model.config.alibi:  # which it adds only where it is given no bias
            distances = alibi_attention_bias(token_ids.shape[1], model.config, token_ids.device)
            bias = distances.masked_fill(~bias, torch.finfo(torch.float32).min)
        return model(token_ids, attention_bias=bias).logits

    return logits


def stock_hugging_face(model: PreTrainedModel) -> Stock:
    def logits(token_ids: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        # Every row may see the same tokens, as far as they stand before it: the library makes the mask.
        return model(input_ids=token_ids, attention_mask=allowed[:, -1].long(), use_cache=False).logits

    return logits


def behind(stock: Stock, leading_ids: Sequence[int]) -> Stock:
    """The stock model that reads these tokens before every text, and whose rows all see them."""
    num = len(leading_ids)

    def logits(token_ids: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        leading = torch.tensor([leading_ids] * len(token_ids), dtype=torch.int64)
        sees = torch.ones(len(token_ids), num + token_ids.shape[1], num + token_ids.shape[1]).tril() > 0
        sees[:, num:, num:] = allowed
        return stock(torch.cat([leading, token_ids], dim=1), sees)[:, num:]

    return logits


def witness_and_model(name: str, seed: int, make_olmo: Callable[..., OLMo]) -> tuple[Stock, CausalLM]:
    """The naive witness and the model under test, with the same weights.

    `name` is of IMPLEMENTATIONS, or of `hugging_face_families`; behind "bos " or "2 bos " it begins every
    context with tokens of its own.
    """
    if "bos " in name:
        number, _, name = name.rpartition("bos ")
        stock, ours = witness_and_model(name, seed, make_olmo)
        leading_ids = [7, 3][: int(number or 1)]
        return behind(stock, leading_ids), ours.led_by(leading_ids)
    if name in ("olmo", "olmo alibi"):
        fields = {"rope": False, "alibi": True} if name == "olmo alibi" else {}
        twins = [make_olmo(seed=seed, n_kv_heads=2, **fields) for _ in range(2)]
        return stock_olmo(twins[0]), OLMoCausalLM(twins[1])
    stock = stock_hugging_face(make_model(name, seed, attention="eager"))
    return stock, HuggingFaceCausalLM(make_model(name, seed))


def log_probs(stock: Stock, target: int, cases: Sequence[Case]) -> np.ndarray:
    """ln p of every token at the target, in each of the cases: float64 [N, V]."""
    allowed = np.zeros((len(cases), target, target), dtype=bool)
    for case, (_, context) in enumerate(cases):
        allowed[case, :, list(context)] = True
    causal = np.tri(target, dtype=bool)
    tokens = np.stack([tokens[:target] for tokens, _ in cases])
    with torch.inference_mode():
        logits = stock(torch.tensor(tokens), torch.tensor(allowed & causal))[:, -1]
    return torch.log_softmax(logits.double(), -1).numpy()


def naive_losses(stock: Stock, target: int, cases: Sequence[Case]) -> list[float]:
    """loss(t | C) of the target that the first case's tokens hold."""
    return (-log_probs(stock, target, cases)[:, cases[0][0][target]]).tolist()


def divergence(reference_V: np.ndarray, prediction_V: np.ndarray) -> float:
    """KL(reference || prediction), both in logarithms."""
    return float((np.exp(reference_V) * (reference_V - prediction_V)).sum())


def naive_divergences(stock: Stock, target: int, reference: Case, cases: Sequence[Case]) -> list[float]:
    """KL(p(.|reference) || p(.|C))."""
    first_V, *others = log_probs(stock, target, [reference, *cases])
    return [divergence(first_V, other_V) for other_V in others]


def swapped(ids_N: np.ndarray, other_N: np.ndarray, places: Any) -> np.ndarray:
    """The tokens, those at some places another text's."""
    changed_N = ids_N.copy()
    changed_N[places] = other_N[places]
    return changed_N


def assert_explained(
    found: Explanation,
    position: int,
    ids_N: np.ndarray,
    swaps_4N: np.ndarray,
    predict: Callable[[int, Sequence[Case]], np.ndarray],
    atol: float,
    num_leading: int = 0,
) -> None:
    """Every number that `explain` tells of one prediction: losses, the sources' effects, and the trial.

    `ids_N` are the tokens that are measured, behind so many leading ones, and so are the swaps: the first
    colors the page, the last serves the search. `predict` is `log_probs` of the stock model.
    """
    (losses,) = found.losses[found.losses["position"] == position].itertuples()
    (told,) = (target for target in found.targets if target["position"] == position)
    sources = found.frame[found.frame["position"] == position]
    first = found.first_token - num_leading
    t = position - first
    near = sources["near_position"].iloc[0] - first
    window = losses.near_position - first
    spans = [range(*span) for span in sources[["source_position", "source_end"]].to_numpy() - first]
    kept = [place for span in spans for place in span]
    answer = ids_N[t]
    coloring_N, *trials, searched_N = swaps_4N

    def of(*texts: np.ndarray) -> np.ndarray:
        return predict(t, [(text, range(t)) for text in texts])

    full_V, colored_V = of(ids_N, swapped(ids_N, coloring_N, slice(window)))
    window_V, short_V = predict(t, [(ids_N, range(start, t)) for start in (window, near)])
    without = of(*(swapped(ids_N, other_N, slice(near)) for other_N in trials))
    back = of(*(swapped(other_N, ids_N, [*kept, *range(near, t)]) for other_N in trials))
    moved = of(*(swapped(ids_N, searched_N, [*span]) for span in spans))
    total, left = (np.mean([divergence(full_V, one_V) for one_V in of_swaps]) for of_swaps in (without, back))
    pairs = [
        (losses.long_context_loss, -full_V[answer]),
        (losses.window_short_loss, -window_V[answer]),
        (losses.window_swapped_loss, -colored_V[answer]),
        (losses.window_short_divergence, divergence(full_V, window_V)),
        (losses.window_swapped_divergence, divergence(full_V, colored_V)),
        (told["long_context_loss"], -full_V[answer]),
        (told["short_context_loss"], -short_V[answer]),
        (told["baseline_loss"], -without[:, answer].mean()),
        (told["total_effect"], total),
        (told["recovered"] * total, total - left),
        (told["probability"], np.exp(full_V[answer])),
        (told["probability_without"], np.exp(without[:, answer]).mean()),
        (told["probability_with_sources"], np.exp(back[:, answer]).mean()),
    ]
    np.testing.assert_allclose(*np.transpose(pairs), atol=atol, rtol=0)
    effects = [divergence(full_V, one_V) for one_V in moved]
    np.testing.assert_allclose(sources["effect"], effects, atol=atol, rtol=0)
    likeliest = [probability for _, probability in told["likeliest"]]
    np.testing.assert_allclose(likeliest, np.sort(np.exp(full_V))[:-4:-1], atol=atol, rtol=0)
