"""Whether a target topic takes a record, and in which partition."""

from __future__ import annotations

import numpy as np
import pytest

from duewheel.schemas.batches import NO_KEY, NO_PARTITION
from duewheel.wheel.target_rules import Reason, Target, reason_text, why_not

PLAIN = Target(4, 1_000)
COMPACTED = Target(4, 1_000, key_required=True)
GONE = Target(0, 1_000, refusal=Reason.UNKNOWN_TARGET_TOPIC)


def test_a_record_without_key_goes_to_a_partition_that_takes_writes() -> None:
    """A replay put all of its letters without key into one partition, which may have no leader."""
    target = Target(3, 1_000, unavailable=frozenset({1}))
    assert {target.partition_of(NO_KEY, sticky) for sticky in range(9)} == {0, 2}
    assert [target.partition_of(key_hash, 0) for key_hash in (3, 4, 5)] == [0, 1, 2]
    assert Target(0, 0).partition_of(NO_KEY, 7) == 0


@pytest.mark.parametrize(
    ("target", "partition", "keyless", "too_large", "reason"),
    [
        (PLAIN, NO_PARTITION, True, False, Reason.NONE),
        (PLAIN, 3, False, False, Reason.NONE),
        (PLAIN, 4, False, True, Reason.BAD_TARGET_PARTITION),
        (PLAIN, NO_PARTITION - 1, False, False, Reason.BAD_TARGET_PARTITION),
        (COMPACTED, 0, True, True, Reason.KEY_REQUIRED),
        (COMPACTED, 0, False, True, Reason.RECORD_TOO_LARGE),
        (GONE, 9, True, True, Reason.UNKNOWN_TARGET_TOPIC),
    ],
)
def test_the_first_rule_that_a_record_breaks(
    target: Target, partition: int, keyless: bool, too_large: bool, reason: Reason
) -> None:
    """Of a column of records, each by its own target."""
    found = why_not(
        [PLAIN, target],
        np.array([1, 0], np.int32),
        np.array([partition, 0], np.int32),
        np.array([keyless, False]),
        np.array([too_large, False]),
    )
    assert found.tolist() == [reason, Reason.NONE]


def test_each_reason_has_a_sentence_but_those_of_policies() -> None:
    """A policy has its own."""
    for reason in set(Reason) - {Reason.NONE, Reason.FORBIDDEN}:
        assert "orders" in reason_text(reason, "orders", PLAIN)
