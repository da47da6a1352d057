"""SmolLM2, a pretrained model of 135 M parameters: numbers are stock transformers'. Two to three minutes."""

import pytest
from stock_model import (
    StockModel,
    assert_explained_as_by_stock,
    assert_losses_as_by_stock,
)

from sparsity_length import losses

pytestmark = [pytest.mark.slow, pytest.mark.real_model]


@pytest.fixture(scope="module")
def stock() -> StockModel:
    return StockModel("smollm2")


def test_explained_as_by_the_stock_model(stock: StockModel) -> None:
    assert stock.num_bos == 0
    assert_explained_as_by_stock(stock, 128, position=120)


def test_losses_are_those_of_the_stock_model(stock: StockModel) -> None:
    assert_losses_as_by_stock(stock)


def test_a_conversation_is_read_as_its_chat_template_says(stock: StockModel) -> None:
    messages = [
        {"role": "user", "content": "Name three rivers of France, one in the north, please."},
        {"role": "assistant", "content": "The Seine, the Loire and the Somme."},
    ]
    expected = stock.token_ids(stock.tokenizer.apply_chat_template(messages, tokenize=False))
    assert losses(messages, stock.folder, short_context_length=16)["token_id"].tolist() == expected.tolist()
