"""Pages of lists: where one ends, and where the next one begins."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from duewheel.errors import ConfigError
from duewheel.ops.pages import Parts, page_of_parts, position_in, position_text, ranges_after

PARTS = [([1, 2], "after-2"), ([3, 4], "after-4")]


def parts(given: list[tuple[list[int], str]]) -> Parts[int]:
    yield from given


def test_a_page_ends_at_its_limit_and_names_the_next_one() -> None:
    assert page_of_parts(parts(PARTS), 3, 60.0, lambda row: f"after-{row}") == (
        [1, 2, 3],
        "after-3",
    )


def test_the_last_page_names_none_also_if_it_is_full() -> None:
    assert page_of_parts(parts(PARTS), 4, 60.0, str) == ([1, 2, 3, 4], None)
    assert page_of_parts(parts([]), 4, 60.0, str) == ([], None)


def test_a_page_whose_time_is_over_goes_on_after_the_part_that_was_read() -> None:
    assert page_of_parts(parts([([], "after-2"), *PARTS]), 4, -1.0, str) == ([], "after-2")


def test_a_position_is_named_and_parsed() -> None:
    assert position_in(position_text(3, 17)) == (3, 17)
    assert position_in(None) == (0, -1)


@pytest.mark.parametrize("page", ["", "3", "3@", "-1@2", "3@17 ", "1234567890@1"])
def test_what_names_no_position_is_refused(page: str) -> None:
    with pytest.raises(ConfigError, match="is no page"):
        position_in(page)


def test_the_records_after_a_position() -> None:
    bounds = {0: (5, 9), 1: (0, 0), 2: (2, 4), 3: (7, 8)}
    assert list(ranges_after((0, -1), bounds)) == [(0, 5, 9), (2, 2, 4), (3, 7, 8)]
    assert list(ranges_after((2, 2), bounds)) == [(2, 3, 4), (3, 7, 8)]
    assert list(ranges_after((2, 3), bounds)) == [(3, 7, 8)], "none of partition 2 is left"
    assert list(ranges_after((9, 0), bounds)) == []


@pytest.mark.parametrize("end", [9, 5])
def test_a_page_tells_of_records_that_retention_has_removed_after_its_position(end: int) -> None:
    bounds = {0: (5, end), 1: (3, 8)}
    with capture_logs() as lines:
        assert list(ranges_after((0, 1), bounds))[-1] == (1, 3, 8)
    (line,) = lines
    assert (line["log_level"], line["page"], line["first"]) == ("warning", "0@1", "0@5")
    with capture_logs() as lines:
        list(ranges_after((0, 4), bounds))  # the first one that is left follows
        list(ranges_after(position_in(None), bounds))
    assert not lines
