"""Gemma 3, pretrained, 270 M parameters, with BOS and windows of 512: numbers are stock transformers'.

Three to five minutes. Gemma is under Google's Gemma Terms of Use (ai.google.dev/gemma/terms); nothing of it
is kept but in the user's cache.
"""

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


def test_bos_is_no_part_of_what_the_long_context_gains(stock: StockModel) -> None:
    (text,) = stock.documents(260, 1)
    frame = losses(text, stock.folder, short_context_length=S, dtype="float32").tail(28)
    assert 0 < frame["loss_difference"].mean() < 3  # by the text: 0.6 to 2.4
