"""The tree of errors: a subclass keeps the promises of its class."""

from __future__ import annotations

from collections.abc import Iterator

from duewheel.errors import DuewheelError, KafkaUnavailable, Unacknowledged


def descendants(kind: type[DuewheelError]) -> Iterator[type[DuewheelError]]:
    for each in kind.__subclasses__():
        yield each
        yield from descendants(each)


def test_after_a_retriable_error_a_call_may_be_repeated() -> None:
    for kind in descendants(DuewheelError):
        if kind.retriable:
            assert all(each.retriable for each in descendants(kind)), kind


def test_what_may_be_written_is_not_caught_with_what_is_not() -> None:
    assert not issubclass(Unacknowledged, KafkaUnavailable)
    assert Unacknowledged.exit_code == KafkaUnavailable.exit_code == 3
