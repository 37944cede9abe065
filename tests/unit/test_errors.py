"""The tree of errors: a subclass keeps the promises of its class."""

from __future__ import annotations

import pytest
from tests.harness.error_tree import descendants

from duewheel import errors
from duewheel.errors import EXIT_CODES, DuewheelError, KafkaUnavailable, Unacknowledged

# Of each class: the exit code of a command, and how the HTTP API answers.
MEANINGS = {
    "DuewheelError": (1, 500, "internal_error"),
    "ConfigError": (2, 422, "invalid_request"),
    "NoDataDirectory": (2, 503, "no_data_directory"),
    "Misconfigured": (2, 503, "misconfigured"),
    "TooMuch": (2, 422, "too_much"),
    "NoReceipts": (2, 404, "no_receipts"),
    "NoSuchSchedule": (2, 404, "no_such_schedule"),
    "Conflict": (2, 409, "conflict"),
    "InvalidTimer": (2, 422, "invalid_request"),
    "KafkaUnavailable": (3, 503, "kafka_unavailable"),
    "DatabaseUnavailable": (1, 500, "internal_error"),  # of the relay alone
    "Unacknowledged": (3, 504, "unacknowledged"),
    "Locked": (6, 500, "internal_error"),  # of processes and of changes of a shard
    "Fenced": (4, 503, "taken_over"),
    "RecoveryRefused": (5, 503, "recovery_refused"),
    "Unreadable": (1, 503, "unreadable"),
    "Reassigned": (1, 503, "resharded"),
    "CorruptFile": (5, 500, "corrupt_file"),
    "BatchTooLarge": (1, 500, "internal_error"),  # of ingest alone, as those of Spark
    "SparkUnavailable": (1, 500, "internal_error"),
    "PlannerUnavailable": (1, 500, "internal_error"),
    "DiskFull": (1, 500, "internal_error"),  # of processes and of a command's output
    "PublishDoubt": (1, 503, "kafka_unavailable"),
    "TransactionTooSlow": (1, 503, "kafka_unavailable"),
    "Displaced": (1, 503, "kafka_unavailable"),
    "RecoveryPending": (1, 503, "recovering"),
    "IngestBehind": (1, 503, "ingest_behind"),
    "SettingsChange": (1, 503, "recovering"),
    "OwnerAlive": (1, 503, "recovering"),
}


def test_every_class_has_a_meaning() -> None:
    own = {e.__name__ for e in descendants(DuewheelError) if e.__module__ == errors.__name__}
    assert own | {"DuewheelError"} == MEANINGS.keys()


@pytest.mark.parametrize("name", MEANINGS)
def test_a_class_has_its_exit_code_and_its_problem(name: str) -> None:
    kind: type[DuewheelError] = getattr(errors, name)
    assert (kind.exit_code, *kind.problem[:2]) == MEANINGS[name]
    assert kind.exit_code in EXIT_CODES
    assert f"── {name}{' ' * 20}"[:20] in (errors.__doc__ or "") or kind is DuewheelError


def test_the_tree_shows_each_exit_code() -> None:
    for line in (errors.__doc__ or "").splitlines():
        words = line.replace("│", " ").replace("├──", " ").replace("└──", " ").split()
        if words and words[0] in MEANINGS:
            assert words[1] == str(MEANINGS[words[0]][0]), line


def test_after_a_retriable_error_a_call_may_be_repeated() -> None:
    for kind in descendants(DuewheelError):
        if kind.retriable:
            assert all(each.retriable for each in descendants(kind)), kind


def test_what_may_be_written_is_not_caught_with_what_is_not() -> None:
    assert not issubclass(Unacknowledged, KafkaUnavailable)
    assert Unacknowledged.exit_code == KafkaUnavailable.exit_code == 3
