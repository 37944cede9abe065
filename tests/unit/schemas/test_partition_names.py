"""Also what names no partition or record, which an operator may write."""

from __future__ import annotations

import pytest

from duewheel.schemas.partition_names import (
    partition_name,
    partition_named,
    record_named,
)

PARTITION = ("a-b.c_1", 2)


def test_a_name_is_read_as_it_was_made() -> None:
    name = partition_name(PARTITION)
    assert partition_named(name) == PARTITION
    assert record_named(f"{name}@17") == (PARTITION, 17)


@pytest.mark.parametrize("name", ["", "orders", "-1", "orders-", "orders-+1", "orders-1_0", "a-1 "])
def test_other_texts_name_no_partition(name: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        partition_named(name)
    with pytest.raises(ValueError, match="no name"):
        record_named(f"{name}@17")


@pytest.mark.parametrize("offset", ["", "-1", "1e3", "1_0", "9" * 20])
def test_other_texts_name_no_record(offset: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        record_named(f"orders-1@{offset}")
