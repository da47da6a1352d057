"""Gemma 3, pretrained, 270 M parameters, with BOS and windows of 512: numbers are stock transformers'.

Three to five minutes. Gemma is under Google's Gemma Terms of Use (ai.google.dev/gemma/terms); nothing of it
is kept but in the user's cache.
"""

import pytest
from stock_model import (
    StockModel,
    assert_explained_as_by_stock,
    assert_losses_as_by_stock,
)

pytestmark = [pytest.mark.slow, pytest.mark.real_model]


@pytest.fixture(scope="module")
def stock() -> StockModel:
    return StockModel("gemma3")


@pytest.mark.parametrize("num_tokens", [121, 560])
def test_explained_as_by_the_stock_model_beyond_the_windows_of_its_layers_too(
    stock: StockModel, num_tokens: int
) -> None:
    assert_explained_as_by_stock(stock, num_tokens, position=num_tokens - 1)


def test_losses_are_those_of_the_stock_model(stock: StockModel) -> None:
    assert stock.num_bos == 1
    assert_losses_as_by_stock(stock)
