"""The tree of errors, and the exit code of each. Beside it each class has its problem in the HTTP
API, which subclasses inherit, too.

DuewheelError                     1  findings, or any error without a code of its own
├── ConfigError                   2  usage or configuration: an option, a field or a setting, which
│   │                                its author corrects
│   ├── NoDataDirectory           2  no start of this shard has made its files on this host yet
│   ├── Misconfigured             2  Kafka, a right or a file does not fit the settings: for the
│   │                                operator to correct, as no caller of the HTTP API can
│   ├── TooMuch                   2  a search takes too long: narrow it, or continue it
│   ├── NoReceipts                2  the settings name no topic for receipts
│   ├── NoSuchSchedule            2  no recurring schedule has this name
│   ├── Conflict                  2  pending timers do not permit a change: look at them
│   └── InvalidTimer              2  a program requests an impossible timer: correct the call
├── KafkaUnavailable              3  no answer from Kafka, and nothing was written: check address,
│                                    network, broker
├── DatabaseUnavailable           1  no answer from PostgreSQL: nothing is lost (retriable)
├── Unacknowledged                3  records or topics may or may not be written: look before
│                                    another try
├── Fenced                        4  another instance owns the shard: this one must stop for good
├── RecoveryRefused               5  files and Kafka disagree: an operator must decide
├── Unreadable                    1  a command cannot read the data directory
│   └── Reassigned                1  its partitions were assigned to other shards: start the shard
├── CorruptFile                   5  bytes on disk fail their check: `duewheel check` lists them
├── BatchTooLarge                 1  a batch exceeds the memory: the next start takes a smaller one
├── SparkUnavailable              1  the cluster has no master or no executor for ingest (retriable)
│   └── PlannerUnavailable        1  no process plans batches: ingest starts another one (retriable)
├── IngestBehind                  1  files lack records that a change depends on: try it again
│                                    later (retriable)
├── DiskFull                      1  the disk lacks room: make room and start again (retriable)
├── Locked                        6  another process holds a lock of the data directory: try again
├── PublishDoubt                  1  the outcome of a transaction is unknown (retriable)
│   ├── TransactionTooSlow        1  the same, by its duration: the next one is smaller (retriable)
│   └── Displaced                 1  the same, as another producer has its id (retriable)
└── RecoveryPending               1  the files must be recovered first: start again (retriable)
    ├── OwnerAlive                1  the owner may be alive: wait until it is silent (retriable)
    └── SettingsChange            1  ingest read under settings that change: read again (retriable)
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NamedTuple

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})  # errno of a full disk or quota
AS_ITS_USER = "run this as the user of the shard's processes"  # ends an error about rights to files
INIT_MAKES_IT = ": `duewheel init` creates it"  # ends an error about a topic of the service
EXIT_CODES = {
    0: "ok",
    1: "findings or another failure",
    2: "usage or configuration",
    3: "no answer from Kafka (the message says if records may be written)",
    4: "fenced",
    5: "recovery refused or a file damaged",
    6: "locked",
    130: "interrupted",
}


class Problem(NamedTuple):
    """How the HTTP API answers an error: with this status, and with `code` for programs. `text`
    stands in place of a message that is not for every caller: the log has that one.
    """

    status: int
    code: str
    text: str = ""


class DuewheelError(Exception):
    """Root of all errors that duewheel raises on purpose.

    Attributes:
        kafka_error: the one of kafka-python that it explains; its own text may have a secret.
    """

    exit_code = 1
    problem = Problem(500, "internal_error", "see the log")
    retriable = False
    kafka_error: Exception | None = None

    def reword(self, text: str) -> None:
        """Gives the error another message, such as its own with more around it."""
        super().__init__(text)


class ConfigError(DuewheelError):
    """An option, a field of a request or a setting is unknown, impossible, or contradicts another;
    the message has the reason.
    """

    exit_code = 2
    problem = Problem(422, "invalid_request")


class NoDataDirectory(ConfigError):
    """The shard has no data directory yet; `setting` names the source of its path."""

    problem = Problem(503, "no_data_directory")

    def __init__(self, path: Path, setting: str = "") -> None:
        super().__init__(
            f"there is no data directory {path}{setting}: `duewheel init` or `duewheel run` "
            "creates it"
        )


class Misconfigured(ConfigError):
    """Kafka, a right, a topic or a file does not fit the settings, whatever is requested."""

    problem = Problem(
        503, "misconfigured", "the service is not configured as it must be: its log has the reason"
    )


class TooMuch(ConfigError):
    """A search or replay takes longer than it may; the message says how to ask for less, or that
    another call continues.
    """

    problem = Problem(422, "too_much")


class NoReceipts(ConfigError):
    """The settings name no topic for receipts."""

    problem = Problem(404, "no_receipts")


class NoSuchSchedule(ConfigError):
    """No recurring schedule has this name; `hint` has the timer topics in which one has it."""

    problem = Problem(404, "no_such_schedule")

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text + hint)
        self.text = text


class Conflict(ConfigError):
    """The state of a pending timer, or the number of matching ones, does not permit the change."""

    problem = Problem(409, "conflict")


class InvalidTimer(ConfigError, ValueError):
    """The request of a timer is contradictory or cannot be parsed; nothing was sent."""


class KafkaUnavailable(DuewheelError):
    """Kafka did not answer in time. Retriable: the failed call has written nothing, though it may
    have taken a transactional id.
    """

    exit_code = 3
    problem = Problem(503, "kafka_unavailable")
    retriable = True


class DatabaseUnavailable(DuewheelError):
    """The database of an outbox did not answer, or not in time."""

    retriable = True


class Unacknowledged(DuewheelError):
    """Kafka has not acknowledged records, or a change of a topic, in time: it may have them, even
    later.

    It is no KafkaUnavailable: a program that tries again after one of those could write twice.

    Attributes:
        counts: after a change of many timers: the numbers of written and of doubtful records.
    """

    exit_code = 3
    problem = Problem(504, "unacknowledged")

    def __init__(self, text: str, **counts: int) -> None:
        super().__init__(text)
        self.counts = counts


class Locked(DuewheelError):
    """A lock of the data directory is held by another process, named in the message."""

    exit_code = 6


class Fenced(DuewheelError):
    """Another instance has taken the shard over; publishing more would duplicate messages."""

    exit_code = 4
    problem = Problem(503, "taken_over")


class RecoveryRefused(DuewheelError):
    """Local files and the progress in Kafka contradict each other; the message has both values."""

    exit_code = 5
    problem = Problem(
        503, "recovery_refused", "files and Kafka do not fit together: the log has the reason"
    )


class Unreadable(DuewheelError):
    """The data directory is damaged, not of these settings, or not for this user."""

    problem = Problem(503, "unreadable")


class Reassigned(Unreadable):
    """The files are of an earlier assignment of partitions: their timers are other shards'."""

    problem = Problem(503, "resharded")


class CorruptFile(DuewheelError):
    """Bytes on disk fail their check.

    Attributes:
        path: the file.
        offset: position in the file, in bytes.
        detail: the damage.
    """

    exit_code = 5
    problem = Problem(500, "corrupt_file", "a file is damaged: `duewheel check` lists it")

    def __init__(self, path: Path | str, offset: int, detail: str) -> None:
        super().__init__(f"{path} at byte {offset}: {detail}")
        self.path = Path(path)
        self.offset = offset
        self.detail = detail


class BatchTooLarge(DuewheelError):
    """One of Spark's batches exceeded the memory: the next start takes fewer rows at a time."""


class SparkUnavailable(DuewheelError):
    """The Spark cluster's master does not answer or gives no executor; the message has a remedy."""

    retriable = True


class PlannerUnavailable(SparkUnavailable):
    """The process that plans batches did not start in time, or has ended."""


class DiskFull(DuewheelError):
    """The disk is too full; the message has the bytes needed and the bytes free."""

    retriable = True


class PublishDoubt(DuewheelError):
    """A transaction may or may not have been committed: rebuild the producer, read the progress.

    Attributes:
        was_begun: False: nothing was written. The remedy is the same.
    """

    problem = Problem(503, "kafka_unavailable")
    retriable = True

    def __init__(self, text: str, *, was_begun: bool = True) -> None:
        super().__init__(text)
        self.was_begun = was_begun


class TransactionTooSlow(PublishDoubt):
    """A PublishDoubt because the transaction took too long: the next one must be smaller."""


class Displaced(PublishDoubt):
    """A PublishDoubt because another producer has taken the transactional id."""


class RecoveryPending(DuewheelError):
    """Dequeue has decided on a recovery of the files: this ingest must restart."""

    problem = Problem(503, "recovering")
    retriable = True


class IngestBehind(DuewheelError):
    """Ingest has not read all records yet that a change depends on; nothing was written."""

    problem = Problem(503, "ingest_behind")
    retriable = True


class SettingsChange(RecoveryPending):
    """The shard's settings change, or have changed, since ingest parsed this batch: no row of it
    was taken, and all of them must be read again.
    """


class OwnerAlive(RecoveryPending):
    """The shard's owner may still be alive: it has been silent for too short a time.

    Attributes:
        left_ms: milliseconds until this directory may take over, if the owner stays silent.
    """

    def __init__(self, text: str, left_ms: int) -> None:
        super().__init__(text)
        self.left_ms = left_ms
