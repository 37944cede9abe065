"""The log in a failure's report: lines of a kind are few, and another test's are not counted."""

from __future__ import annotations

import logging

from tests.harness.report_log import LINES_MAX, FewOfEach


def shown(few: FewOfEach, text: str, count: int) -> int:
    """How many of so many lines, numbered, pass."""
    lines = [logging.LogRecord("kafka", 30, "", 0, text, (n,), None) for n in range(count)]
    return sum(few.filter(line) for line in lines)


def test_lines_that_differ_in_numbers_are_of_one_kind() -> None:
    few = FewOfEach()
    assert shown(few, "retrying (%s attempts left)", 500) == LINES_MAX
    assert shown(few, "connection %s is lost", 2) == 2
    few.forget()
    assert shown(few, "retrying (%s attempts left)", 500) == LINES_MAX


def test_the_log_of_a_report_is_filtered() -> None:
    """The filter is at the handler that writes the report."""
    handlers = [h for h in logging.getLogger().handlers if any(map(is_few, h.filters))]
    assert len(handlers) == 1


def is_few(one: object) -> bool:
    return type(one).__name__ == FewOfEach.__name__
