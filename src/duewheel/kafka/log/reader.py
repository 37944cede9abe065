"""Reads ranges of topics, and follows topics.

It takes whole record batches: columns.py reads them as columns, records.py one by one. A fetch that
has failed is repeated. Where retention has deleted the next offset, reading continues at the log's
start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kafka import errors

from duewheel.deadline import Deadline
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.log.connection import LogConnection
from duewheel.kafka.log.leader_requests import NO_END, Fetched
from duewheel.kafka.log.records import Record, records_of
from duewheel.schemas.partition_names import partition_name

if TYPE_CHECKING:  # the client has no numpy
    from duewheel.schemas.batches import OffsetRanges, TopicPartition

_FETCH_BYTES = 1 << 20
# Of memory: a fetch of 1 MB may decompress to records that take gigabytes as objects of Python.
PART_BYTES = 8 << 20
RECORD_BYTES, HEADER_BYTES = 400, 160  # of memory, beside key, value and the header's own
_AHEAD_S = 0.5  # before an enclosing call ends, whose message would not say why


class LogReader(LogConnection):
    """See the module's head. Not thread-safe: one reader, one thread."""

    def read(self, ranges: OffsetRanges, bytes_max: int = _FETCH_BYTES) -> Iterator[list[Fetched]]:
        """The batches of the ranges, in parts; those of a partition in their order.

        A part has the answers to one round of fetches, each partition at most once. A batch may
        have records outside its range, which columns.py and records.py drop.

        Args:
            ranges: first offset, and the one after the last, of each partition. The caller may
                lower a last one meanwhile.
            bytes_max: bounds an answer, but for a larger batch. The ranges of one broker share it.

        Raises:
            KafkaUnavailable: no position has moved within a deadline of `begin`.
        """
        positions = {p: first for p, (first, _) in ranges.items()}
        deadline = self._begin()
        while positions := {p: at for p, at in positions.items() if at < ranges[p][1]}:
            untils = {p: ranges[p][1] for p in positions}
            part, refused, failures = self._fetch(deadline, positions, bytes_max, untils)
            with self.bounded_by(deadline):
                failures += self._move_to_log_starts(refused, positions)
            if part:
                yield part
                deadline = self._begin()  # the caller's work on the part does not count
                deadline.renew()
            elif not failures and deadline.remaining_s() <= _AHEAD_S:
                raise KafkaUnavailable(
                    f"nothing comes from {', '.join(map(partition_name, positions))}: at offset "
                    f"{next(iter(positions.values()))}, perhaps held back by an open transaction; "
                    "if it stays open, kafka-transactions.sh find-hanging names it"
                )
            self._retry_before(deadline, failures)

    def records(
        self, ranges: OffsetRanges, bytes_max: int = _FETCH_BYTES
    ) -> Iterator[tuple[list[Record], Mapping[TopicPartition, int]]]:
        """The records of the ranges one by one, in parts of PART_BYTES and one record at most.

        Yields:
            Records, those of a partition in their order; and for each partition of the part the
            offset below which it is read.
        """
        for part in self.read(ranges, bytes_max):
            yield from _in_parts(part, {p.partition: ranges[p.partition][1] for p in part})

    def poll(
        self, positions: dict[TopicPartition, int], bytes_max: int = _FETCH_BYTES
    ) -> Iterator[list[Record]]:
        """The records that have been added, in parts as of `records`; moves the positions after
        them. Returns soon if there are none, or while a leader does not answer. Where a log has
        lost the position, as one that was recreated, it is read from its start.

        Raises:
            KafkaUnavailable, ConfigError: an error that no retry mends, such as a lost right.
        """
        deadline = self._begin()
        part, refused, failures = self._fetch(deadline, positions, bytes_max)
        with self.bounded_by(deadline):
            positions.update(self.starts(refused))
        self._retry_before(deadline, failures)
        return (records for records, _ in _in_parts(part, {}))

    def _fetch(
        self,
        deadline: Deadline,
        positions: dict[TopicPartition, int],
        bytes_max: int,
        untils: Mapping[TopicPartition, int] | None = None,
    ) -> tuple[list[Fetched], list[TopicPartition], list[Exception]]:
        """One round of fetches: the answers, whose positions are moved; the partitions that are
        asked for an offset that they do not have; and failures.
        """
        part: list[Fetched] = []
        failures: list[Exception] = []
        refused: list[TopicPartition] = []
        fetch = self._requests(deadline).fetch
        given = dict(positions), bytes_max, self._committed, untils
        answers = self._run_or_close(deadline, "fetch", fetch, *given)
        for partition, answer in answers.items():
            if isinstance(answer, errors.OffsetOutOfRangeError):
                refused.append(partition)
            elif isinstance(answer, Exception):
                failures.append(answer)
            elif answer.end > positions[partition]:
                positions[partition] = answer.end
                part.append(answer)
        return part, refused, failures

    def _move_to_log_starts(
        self, refused: Sequence[TopicPartition], positions: dict[TopicPartition, int]
    ) -> list[Exception]:
        """Moves positions below their logs' starts to these; returns errors of the other ones.

        An offset at or above the log's start is below the end that the range was planned with. So
        another leader may have it, and the fetch is repeated; or the log has lost its end, and the
        next start of ingest refuses it. To skip the offset would lose its record without a trace.
        """
        failures: list[Exception] = []
        for partition, start in self.starts(refused).items():
            if positions[partition] < start:
                positions[partition] = start
            else:
                at = f"{partition_name(partition)} at {positions[partition]}"
                failures.append(errors.OffsetNotAvailableError(at))
        return failures


def _in_parts(
    part: Sequence[Fetched], untils: Mapping[TopicPartition, int]
) -> Iterator[tuple[list[Record], dict[TopicPartition, int]]]:
    """Yields as `LogReader.records`, at least once."""
    reached: dict[TopicPartition, int] = {}
    records, size = list[Record](), 0
    for fetched in part:
        until = untils.get(fetched.partition, NO_END)
        for record in records_of(fetched, until):
            if size >= PART_BYTES:
                yield records, reached | {fetched.partition: record.offset}
                records, reached, size = [], {}, 0
            records.append(record)
            size += RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
            size += sum(HEADER_BYTES + len(n) + len(v or b"") for n, v in record.headers)
        reached[fetched.partition] = min(fetched.end, until)
    yield records, reached
