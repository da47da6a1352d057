"""Gemma 3, pretrained, 270 M parameters, with BOS and windows of 512: numbers are stock transformers'.

Three to five minutes. Gemma is under Google's Gemma Terms of Use (ai.google.dev/gemma/terms); nothing of it
is kept but in the user's cache.
"""

import numpy as np
import pytest
from stock_model import (
    S,
    StockModel,
    assert_explained_as_by_stock,
    assert_losses_as_by_stock,
    folder_or_skip,
)

from sparsity_length import losses

pytestmark = [pytest.mark.slow, pytest.mark.real_model]


@pytest.fixture(scope="module")
def stock() -> StockModel:
    stock = StockModel(folder_or_skip("gemma3"))
    assert stock.num_bos == 1
    return stock


def test_explained_as_by_the_stock_model(stock: StockModel) -> None:
    (text,) = stock.documents(128, 1)
    assert_explained_as_by_stock(stock, text, position=120)


def test_beyond_the_windows_of_its_layers_too(stock: StockModel) -> None:
    (text,) = stock.documents(560, 1)
    assert_explained_as_by_stock(stock, text, position=559)


def test_losses_are_those_of_the_stock_model(stock: StockModel) -> None:
    (text,) = stock.documents(128, 1)
    assert_losses_as_by_stock(stock, text, places=(1, 2, 30, 60, 111))


def test_without_bos_it_is_another_model(stock: StockModel) -> None:
    """By the stock model alone: BOS is worth more than all the text that a long context adds."""
    (text,) = stock.documents(260, 1)
    ids_N = stock.token_ids(text)
    targets = range(len(ids_N) - 24, len(ids_N), 2)

    def mean_loss(length: int, with_bos: bool) -> float:
        predictions = (stock.log_probs(ids_N, t, range(t - min(length, t), t), with_bos) for t in targets)
        return float(np.mean([-one_V[ids_N[t]] for t, one_V in zip(targets, predictions, strict=True)]))

    long = mean_loss(len(ids_N), True)
    short = mean_loss(S, True)
    short_without = mean_loss(S, False)
    assert short - long < 2 < short_without - long  # 0.6 to 1.6 with BOS, by the text


def test_bos_is_no_part_of_what_the_long_context_gains(stock: StockModel) -> None:
    (text,) = stock.documents(260, 1)
    frame = losses(text, stock.folder, short_context_length=S, dtype="float32").tail(28)
    assert 0 < frame["loss_difference"].mean() < 3  # by the text: 0.6 to 2.4
