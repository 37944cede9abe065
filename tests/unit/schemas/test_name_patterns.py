"""Patterns over topic names: equal matches in every engine, and refused patterns."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duewheel.errors import ConfigError
from duewheel.schemas.name_patterns import (
    NONE,
    TimerTopics,
    for_arrow,
    of_shell,
    require_portable,
    whole,
)

_pc: Any = pyarrow.compute

NAMES = st.text("abz.-_09", max_size=6)
SHELL = st.lists(
    st.sampled_from(["*", "?", "a", "b", ".", "-", "_", "[ab]", "[!a]", "[a-z]", "[.]"]),
    min_size=1,
    max_size=6,
).map("".join)


def found_by_arrow(regex: str, name: str) -> bool:
    found = _pc.match_substring_regex(pa.array([name], pa.large_string()), for_arrow(regex))
    return bool(found[0].as_py())


@given(st.lists(SHELL, min_size=1, max_size=3), NAMES, st.sampled_from(["", "\n", "\n\n", " "]))
@example(["a"], "a", "\n")
def test_shell_patterns_mean_what_shells_mean_in_both_engines(
    patterns: list[str], name: str, end: str
) -> None:
    regex = of_shell(patterns)
    meant = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    assert (re.search(regex, name) is not None) is meant
    assert found_by_arrow(regex, name) is meant
    # Also for what is no topic's name.
    assert found_by_arrow(regex, name + end) is (re.search(regex, name + end) is not None)


@pytest.mark.parametrize("name", ["", "a", "a\n", "\n", "é"])
def test_none_is_found_in_no_name(name: str) -> None:
    assert not found_by_arrow(NONE, name)
    assert not re.search(NONE, name)
    assert of_shell([]) == NONE


@pytest.mark.parametrize("pattern", ["", "a b", "a{b}", "[a", "[]", "a+", "orders\n", "é", "[b-a]"])
def test_what_is_no_pattern_of_names_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError):
        of_shell([pattern])


@pytest.mark.parametrize("regex", [r"\w", "a$b", r"a\$", "(?i)a", "(a"])
def test_a_regular_expression_must_mean_the_same_everywhere(regex: str) -> None:
    with pytest.raises(ConfigError):
        require_portable(whole(regex))


@pytest.mark.parametrize("pattern", [r".*\.delayed", r"^.*\.delayed$", r"a|.*\.delayed$"])
def test_a_pattern_speaks_of_whole_names_of_others_topics(pattern: str) -> None:
    topics = TimerTopics(("listed",), pattern, frozenset({"own.delayed"}))
    assert "orders.delayed" in topics
    assert "listed" in topics
    assert not topics.matches("listed")
    for name in ("orders.delayed.dead", "orders-delayed", "own.delayed", "__x.delayed", "orders"):
        assert name not in topics


def test_without_a_pattern_only_the_list_counts() -> None:
    topics = TimerTopics(("listed",))
    assert "listed" in topics
    assert "other" not in topics
    assert topics.regex == NONE
