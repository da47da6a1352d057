"""Tables of text: columns stand under their names, in every script."""

import pytest

from sparsity_length.results.table import as_table


@pytest.mark.parametrize(
    ("word", "width"),
    [
        ("cat", 3),
        ("伦敦", 4),
        ("ﾛﾝﾄﾞﾝ", 5),
        ("か\u3099", 2),
        ("cafe\u0301", 4),
        ("서울", 4),
        ("ที่", 1),
        ("كِتَاب", 4),
        ("🚀", 2),
    ],
)
def test_a_column_is_as_wide_as_a_terminal_shows_it(word: str, width: int) -> None:
    lines = as_table(["word", "n"], [[word, 1], ["12345678", 22]], ["n"]).splitlines()
    assert lines[1] == word + " " * (8 - width) + "   1" and lines[2] == "12345678  22"
    of_numbers = as_table(["n"], [[word], ["12345678"]], ["n"]).splitlines()
    assert of_numbers[1] == " " * (8 - width) + word
