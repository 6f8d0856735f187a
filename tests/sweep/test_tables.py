"""Tables in Markdown, and intervals of differences."""

import pytest

from fairseq_maelm.sweep.tables import difference_of_medians, markdown_table


def test_a_table_can_be_read_as_it_is() -> None:
    table = markdown_table(["", "b"], [["a | x", "10"], ["1.50", "–"]])
    assert table.splitlines() == ["|       | b   |", "|-------|-----|", "| a / x | 10  |", "| 1.50  | –   |"]


def test_the_interval_of_a_difference_of_medians() -> None:
    """Of three values each, 27 draws: the median is the least or the greatest in 7 of them, more than 2.5 %."""
    found = difference_of_medians([70.0, 71.0, 72.0], [60.0, 61.0, 62.0])
    assert found is not None and str(found) == "+10.0 (+8.0 to +12.0)"
    same = difference_of_medians([60.0, 61.0, 65.0, 62.0, 61.5], [60.0, 61.0, 65.0, 62.0, 61.5])
    assert same is not None and same.median == 0.0 and same.low < 0.0 < same.high
    assert same == difference_of_medians([60.0, 61.0, 65.0, 62.0, 61.5], [60.0, 61.0, 65.0, 62.0, 61.5])
    equal = difference_of_medians([60.0] * 3, [59.0] * 3)
    assert equal == pytest.approx((1.0, 1.0, 1.0))
    assert difference_of_medians([60.0, 61.0], [60.0, 61.0, 62.0]) is None
