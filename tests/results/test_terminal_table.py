"""Tables by hand: alignment, rounding, and text that a terminal would obey."""

from decimal import Decimal

from pipeline.results.table import as_table


def test_tables_are_aligned_by_hand() -> None:
    table = as_table(["model", "loss", "n"], [("long", 2.0, 1000), ("b", None, 7)])
    assert table == "model    loss     n\nlong   2.0000  1000\nb        NULL     7\n"
    assert as_table(["a", "b"], []) == "a  b\n"
    rounded = as_table(["model", "nats"], [("a", "1.5 [1, 2]"), ("b", "-")], num_left_columns=1)
    assert rounded == "model        nats\na      1.5 [1, 2]\nb               -\n"


def test_values_read_well() -> None:
    for values, shown in (
        ([0.123456, 1e-7, 0.0, -12.0], ["0.1235", "1.0e-07", "0.0000", "-12.0000"]),
        ([123456.789, 2.0], ["123456.8", "2.0"]),
        ([1.5e-5, -2e-6], ["1.500e-05", "-2.000e-06"]),
        ([float("nan"), float("inf"), 1.0], ["NaN", "inf", "1.0000"]),
        ([True, None], ["true", "NULL"]),
        ([Decimal("1.50")], ["1.50"]),
        ([[0.1 + 0.2, None, 3]], ["[0.3, NULL, 3]"]),
        (["x" * 100], ["x" * 59 + "…"]),
        (["a\nb\x1b[31m\u202e"], [r"a\nb\x1b[31m\u202e"]),
    ):
        lines = as_table(["x"], [(value,) for value in values]).splitlines()
        assert [line.strip() for line in lines[1:]] == shown
