"""What stock models predict under chosen contexts: the witness of the brute-force tests.

It shares no code with the engine. It never removes a token nor chooses a position ID: stock OLMo, or the
stock Hugging Face model with eager attention, reads all tokens before the target in place, and attention
edges into the tokens outside the context are cut. Windows of layers that slide are cut by the library.

Shapes: N cases, S rows (the tokens before the target), V vocabulary.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
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
        is_seen = allowed[:, -1].long()
        return model(input_ids=token_ids, attention_mask=is_seen, use_cache=False).logits

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


def swapped(ids_N: np.ndarray, other_N: np.ndarray, places: Any) -> np.ndarray:
    """The tokens, those at some places another text's."""
    changed_N = ids_N.copy()
    changed_N[places] = other_N[places]
    return changed_N


def assert_tried(
    target: Mapping[str, Any],
    first_token: int,
    ids_N: np.ndarray,
    swaps_4N: np.ndarray,
    measure: Callable[[list[np.ndarray]], list[tuple[float, float]]],
    num_tokens: int,
    atol: float,
) -> None:
    """Every number that `explain` tells of what is explained as one: its sources' effects, and the trial.

    `ids_N` begin at this token of the text, as the swaps do: the second and third are the trial's, the last
    serves the search. `measure` tells of each text the effect that it has in their place, and the loss of all
    `num_tokens` there. Of another continuation `explain` tells no loss.
    """
    near = target["near_position"] - first_token
    sources = pd.DataFrame(target["sources"])
    spans_K2 = sources[["source_position", "source_end"]].to_numpy() - first_token
    left_out = np.setdiff1d(range(near), np.concatenate([range(*span) for span in spans_K2]))
    of_texts = (
        [ids_N],
        [swapped(ids_N, other_N, slice(near)) for other_N in swaps_4N[1:3]],
        [swapped(ids_N, other_N, left_out) for other_N in swaps_4N[1:3]],
        [swapped(ids_N, swaps_4N[3], slice(*span)) for span in spans_K2],
    )
    effects, losses = zip(*(np.transpose(measure(texts)) for texts in of_texts), strict=True)
    total = effects[1].mean()
    names = ("probability", "probability_without", "probability_with_sources")
    probabilities = [np.exp(-of_each / num_tokens) for of_each in losses]
    pairs = [
        (target["total_effect"], total),
        (target["recovered"] * target["total_effect"], total - effects[2].mean()),
        (target["long_context_loss"], losses[0].mean()),
        (target["baseline_loss"], losses[1].mean()),
        *((target[name], expected.mean()) for name, expected in zip(names, probabilities, strict=False)),
        *zip(sources["effect"], effects[3], strict=True),
        *zip(sources["probability_swapped"], probabilities[3], strict=True),
    ]
    told = [(found, expected) for found, expected in pairs if found is not None]
    np.testing.assert_allclose(*np.transpose(told), atol=atol, rtol=0)


def assert_explained(
    found: Explanation,
    position: int,
    ids_N: np.ndarray,
    swaps_4N: np.ndarray,
    predict: Callable[[int, Sequence[Case]], np.ndarray],
    atol: float,
    num_leading: int = 0,
) -> None:
    """Every number that `explain` tells of one prediction: losses, and those of `assert_tried`.

    `ids_N` are the tokens that are measured, behind so many leading ones, and so are the swaps, of which the
    first colors the page. `predict` is `log_probs` of the stock model.
    """
    (losses,) = found.losses[found.losses["position"] == position].itertuples()
    (told,) = (target for target in found.targets if target["position"] == position)
    first = found.first_token - num_leading
    t = position - first
    window = losses.near_position - first
    colored = swapped(ids_N, swaps_4N[0], slice(window))
    full_V, colored_V = predict(t, [(text, range(t)) for text in (ids_N, colored)])
    starts = window, told["near_position"] - first
    window_V, short_V = predict(t, [(ids_N, range(start, t)) for start in starts])

    def measure(texts: list[np.ndarray]) -> list[tuple[float, float]]:
        predicted = predict(t, [(text, range(t)) for text in texts])
        return [(divergence(full_V, one_V), -one_V[ids_N[t]]) for one_V in predicted]

    assert_tried(told, first, ids_N, swaps_4N, measure, 1, atol)
    pairs = [
        (losses.long_context_loss, -full_V[ids_N[t]]),
        (losses.window_short_loss, -window_V[ids_N[t]]),
        (losses.window_swapped_loss, -colored_V[ids_N[t]]),
        (losses.window_short_divergence, divergence(full_V, window_V)),
        (losses.window_swapped_divergence, divergence(full_V, colored_V)),
        (told["short_context_loss"], -short_V[ids_N[t]]),
        *zip(np.transpose(told["likeliest"])[1].astype(float), np.sort(np.exp(full_V))[:-4:-1], strict=True),
    ]
    np.testing.assert_allclose(*np.transpose(pairs), atol=atol, rtol=0)
