"""What Great Expectations checks of expectations that anyone has written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from duewheel.audit.expectations import GreatExpectations, Unchecked

_pa: Any = pa


def expectation(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{kind}", "kwargs": kwargs, "meta": {"reason": "a test"}}


def test_an_expectation_takes_no_more_than_its_share_of_the_time() -> None:
    """A pattern may be quadratic, or worse, in a text whose length a producer chooses."""
    matches = "column_values_to_match_regex"
    expectations = [
        expectation(matches, column="mail", regex=r"^.+@.+\..+$"),
        expectation(matches, column="mail", regex=r"^(@+)+$"),
        expectation("column_values_to_not_be_null", column="mail"),
        expectation("table_row_count_to_equal", value=1),
    ]
    library, table = GreatExpectations(), _pa.table({"mail": ["@" * 1_000_000 + "x"]})
    results: list[Any] = library.check_each(expectations, table, 4.0)
    *unchecked, not_null, one = results
    why = f"expect_{matches} cannot be checked: it takes more than its share of 4 s"
    assert unchecked == [Unchecked(why)] * 2
    assert (not_null.success, one.success) == (True, True)
    results = library.check_each(expectations, _pa.table({"mail": ["a@b.c"]}), 4.0)
    assert [each.success for each in results] == [True, False, True, True]
