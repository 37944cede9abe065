"""The one tree of errors, and the exit code that each carries to the shell.

DuewheelError                     1  findings, or anything without a better code
├── ConfigError                   2  usage or configuration: mend it and start again
│   └── InvalidTimer              2  what a program asks of a timer is impossible: mend the call
├── KafkaUnavailable              3  no answer from Kafka in time: check address, network, broker
├── Fenced                        4  another instance owns the shard: this one must stop for good
├── RecoveryRefused               5  files and Kafka disagree in a way that is not mended alone
├── CorruptFile                   5  bytes on disk fail their check: `duewheel check` lists them
├── DiskFull                      1  the disk lacks room: make room and start again (retriable)
├── Locked                        6  another process holds a lock of the data directory: try again
├── PublishDoubt                  1  the outcome of a transaction is unknown (retriable)
└── RecoveryPending               1  the files are to be recovered first: start again (retriable)
"""

from __future__ import annotations

import errno
from pathlib import Path

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})  # of an OSError: the disk, or a quota, is full


class DuewheelError(Exception):
    """Root of everything duewheel raises on purpose."""

    exit_code = 1
    retriable = False


class ConfigError(DuewheelError):
    """A setting is unknown, impossible, or contradicts another; the message says which and why."""

    exit_code = 2


class InvalidTimer(ConfigError, ValueError):
    """What is asked of a timer is contradictory or cannot be read; nothing was sent."""


class KafkaUnavailable(DuewheelError):
    """Kafka did not answer in time. Retriable: nothing was changed by the failed call."""

    exit_code = 3
    retriable = True


class Locked(DuewheelError):
    """A lock of the data directory is held by another process, named in the message."""

    exit_code = 6


class Fenced(DuewheelError):
    """Another instance has taken the shard over; publishing anything more would double messages."""

    exit_code = 4


class RecoveryRefused(DuewheelError):
    """Local files and the progress in Kafka do not fit together; the message gives both sides."""

    exit_code = 5


class CorruptFile(DuewheelError):
    """Bytes on disk fail their check.

    Attributes:
        path: the file.
        offset: where in the file, in bytes.
        detail: what is wrong.
    """

    exit_code = 5

    def __init__(self, path: Path | str, offset: int, detail: str) -> None:
        super().__init__(f"{path} at byte {offset}: {detail}")
        self.path = Path(path)
        self.offset = offset
        self.detail = detail


class BatchTooLarge(DuewheelError):
    """A batch of Spark's did not fit the memory: the next start takes fewer rows at a time."""


class DiskFull(DuewheelError):
    """The disk has too little room: the message says how much is wanted and how much is free."""

    retriable = True


class PublishDoubt(DuewheelError):
    """A transaction may or may not have been committed: rebuild the producer, read the progress."""

    retriable = True


class TransactionTooSlow(PublishDoubt):
    """The same, because it did not come to its end in time: the next one is to be smaller."""


class RecoveryPending(DuewheelError):
    """Dequeue has decided that the files are to be recovered: this ingest must start anew."""

    retriable = True
