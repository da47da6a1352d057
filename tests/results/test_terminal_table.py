"""Tables by hand: alignment, and text that a terminal would obey."""

from pipeline.results.table import as_table


def test_tables_are_aligned_by_hand() -> None:
    table = as_table(["model", "n"], [("long", 1000), ("b", 7)])
    assert table == "model     n\nlong   1000\nb         7\n"
    assert as_table(["a", "b"], []) == "a  b\n"
    rounded = as_table(["model", "nats"], [("a", "1.5 [1, 2]"), ("b", "-")], num_left_columns=1)
    assert rounded == "model        nats\na      1.5 [1, 2]\nb               -\n"
    assert as_table(["x"], [["a\nb\x1b[31m\u202e"]]) == "x\na\\nb\\x1b[31m\\u202e\n"
