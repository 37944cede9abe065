"""The settings of rows by their topics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute
import pytest

from duewheel.schemas.columns import binary
from duewheel.schemas.request import open_targets
from duewheel.schemas.request.headers import Field
from duewheel.schemas.request.request_columns import target_column
from duewheel.schemas.request.row_settings import RowSettings
from duewheel.schemas.request.topic_settings import TopicContract


def test_a_list_of_targets_is_matched_with_the_names_of_its_own_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every list with every name would cost the square of what one producer writes."""
    matched = list[int]()

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(pyarrow.compute, name)

        def match_substring_regex(self, values: Any, regex: str) -> Any:
            matched.append(len(values))
            return pyarrow.compute.match_substring_regex(values, regex)

    monkeypatch.setattr(open_targets, "_pc", Counting())
    topics = [TopicContract(targets=(f"open{n}*",), target="own") for n in range(4)]
    # One topic requests many names; the others "open0x", and one of them its own target.
    names = [b"open0x", b"own", *(b"open1-%d" % n for n in range(50)), b"open0x", b"open0x"]
    partition = np.array([0, 0, *[1] * 50, 2, 3], np.int32)
    field = Field(np.arange(len(names)), binary(names))
    target = target_column(field, np.full(len(names), -1, np.int32), [])
    closed = RowSettings(topics, partition).closed_targets(target)
    assert np.flatnonzero(closed).tolist() == [52, 53]
    assert matched == [2, 50, 1, 1]
