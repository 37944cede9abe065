"""`duewheel dlq replay`: writes the messages of dead letters again, once their cause is removed.

A replay reads the dead-letter topic up to its end at the start, one bounded chunk at a time. One
Kafka transaction per chunk holds the messages and the position (dlq_replay_position.py), so a dead
letter is replayed once, whatever is killed and however often the command runs (kafka/ledger/).

The same transaction writes a letter that cannot be replayed now (no such topic, too large, a target
that its timer topic is not open for …) to the end of the dead-letter topic again, with the present
reason. The same run does not read it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import structlog

from duewheel import factory
from duewheel.api.dead_letters import Replayed, ReplayFilter
from duewheel.checkpoints.dlq_replay_position import KEY, ReplayPosition, Selected
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.errors import ConfigError, TooMuch
from duewheel.kafka.ledger.command_ledger import CommandLedger, LedgerSpec
from duewheel.kafka.ledger.ledger_run import LedgerRun
from duewheel.kafka.ledger.new_records import NewRecord
from duewheel.ops.changes.acceptance import NOT_ALLOWED, require_in_force
from duewheel.ops.dead_letters.listing import CHUNK_RECORDS, DeadLetterReader, dead_letter_reader
from duewheel.ops.dead_letters.wanted_letters import WantedLetters
from duewheel.ops.named_timer_topic import narrowed
from duewheel.ops.pages import position_text
from duewheel.ops.shard.present_files import newest_progress
from duewheel.osutil.terminal import Advanced, unseen
from duewheel.schemas.batches import NO_PARTITION
from duewheel.schemas.columns import binary
from duewheel.schemas.dead_letters import DeadLetter, Outgoing, why_no_target
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.request.preview import Rejection, previews_of
from duewheel.schemas.topic_scope import ALL_TOPICS
from duewheel.schemas.wire.single_record import Header
from duewheel.wheel.target_rules import Reason, Target, reason_text

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Record(NewRecord):
    """The record of one letter; one with a `refusal` goes to the dead-letter topic again."""

    refusal: Rejection | None = None


def replay(
    settings: Settings,
    clock: Clock,
    wanted: ReplayFilter,
    *,
    dry_run: bool,
    chunk_records: int = CHUNK_RECORDS,
    advanced: Advanced = unseen,
    within_s: float = math.inf,
) -> Replayed:
    """Replays the wanted dead letters that have not been replayed, up to `chunk_records` in each
    transaction; a dry run only counts them. Calls `advanced` with the offsets read after each.
    After `within_s` it ends, with those so far; a new run continues.

    Raises:
        ConfigError: `to_topic` is one of duewheel's own topics, or does not exist; or there is no
            such timer topic.
        TooMuch: it has ended without any, though some may follow.
        Misconfigured: as `require_in_force`.
        KafkaUnavailable: no answer in time.
        PublishDoubt: a transaction's outcome is unknown. A new run reads it, and replays nothing
            twice.
    """
    deadline = Deadline(within_s)
    letters = WantedLetters(wanted.code, narrowed(settings, ALL_TOPICS, wanted.timer_topic))
    require_in_force(settings, newest_progress(settings))
    with (
        dead_letter_reader(settings, chunk_records) as reader,
        closing(_Replay(settings, clock, wanted, reader, advanced, dry_run=dry_run)) as job,
    ):
        return job.run(letters, deadline)


class _Replay:
    """One run of the command. Not thread-safe."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        wanted: ReplayFilter,
        reader: DeadLetterReader,
        advanced: Advanced,
        *,
        dry_run: bool,
    ) -> None:
        self._settings, self._clock, self._wanted = settings, clock, wanted
        self._reader, self._advanced, self._dry_run = reader, advanced, dry_run
        self._contract = factory.contract(settings)
        self._refusals: dict[tuple[str | None, str], Rejection | None] = {}
        # One partition of each target for letters without key and request.
        self._sticky = random.randrange(1 << 31)
        decode = partial(ReplayPosition.decode, topic_id=reader.topic_id)
        spec = LedgerSpec("replay", "dlq-replay", KEY, decode)
        self._ledger = CommandLedger(settings, spec, clock)
        self._selected: Selected = wanted.code, wanted.timer_topic
        self._left = wanted.limit
        self._topics: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def close(self) -> None:
        """Closes the clients. The next run, or its time-out, aborts an open transaction."""
        self._ledger.close()

    def run(self, letters: WantedLetters, deadline: Deadline) -> Replayed:
        """Replays these letters until the deadline. Raises as `replay`."""
        self._require_real_topic()
        ledger_run = LedgerRun(
            self._ledger, dry_run=self._dry_run, is_over=lambda: deadline.is_over
        )
        with ledger_run.after(self._done_before):
            self._replay_all(ledger_run, letters, deadline)
        return Replayed(
            dry_run=self._dry_run,
            replayed=self._topics.total(),
            topics=dict(self._topics),
            refused=dict(self._refused),
        )

    def _done_before(self) -> str:
        replayed, refused = self._topics.total(), self._refused.total()
        return f"{replayed} dead letters were replayed before, {refused} refused"

    def _require_real_topic(self) -> None:
        topic = self._wanted.to_topic
        if topic is None:
            return
        refusal = self._why_no_target(None, topic)
        if refusal is not None:
            raise ConfigError(f"nothing can be replayed to {refusal.reason}")
        target = self._ledger.resolve([topic])[topic]
        if target.refusal is not Reason.NONE:
            why = reason_text(target.refusal, topic, target)
            raise ConfigError(f'nothing can be replayed to "{topic}": {why}')

    def _why_no_target(self, timer_topic: str | None, topic: str) -> Rejection | None:
        """The rule by which the present settings reject every timer of the timer topic with this
        target.
        """
        pair = (timer_topic, topic)
        if pair not in self._refusals:
            self._refusals[pair] = why_no_target(self._contract, timer_topic, topic)
        return self._refusals[pair]

    def _replay_all(
        self, run: LedgerRun[ReplayPosition], wanted: WantedLetters, deadline: Deadline
    ) -> None:
        bounds = self._reader.bounds()
        for partition, (start, end) in bounds.items():
            after = run.position.start(partition, *self._selected)
            if after < start:
                log.warning(
                    "dead letters may have been removed before a replay read them",
                    partition=partition,
                    from_offset=after,
                    first_left=start,
                )
            bounds[partition] = max(start, after), end
        done, total = 0, sum(max(0, end - start) for start, end in bounds.values())
        for partition, (start, end) in bounds.items():
            at = start
            for letters, reached in self._reader.read(partition, start, end, wanted):
                done, at = done + reached - at, reached
                is_late = deadline.is_over and done < total
                self._write_chunk(run, letters, partition, reached, keep=is_late)
                self._advanced(done, total)
                if self._left == 0 or (is_late and (self._topics or self._refused)):
                    return
                if is_late:
                    raise TooMuch(self._without_any())

    def _without_any(self) -> str:
        """A result of none would mean that none is left."""
        words = "a dry run of `duewheel dlq replay`" if self._dry_run else "a new request"
        return f"no dead letter among those that could be read in time: {words} reads the others"

    # ---- one chunk -------------------------------------------------------------------------

    def _write_chunk(
        self,
        run: LedgerRun[ReplayPosition],
        letters: Sequence[DeadLetter],
        partition: int,
        reached: int,
        *,
        keep: bool,
    ) -> None:
        """Writes the messages of the chosen letters, with the position after them: in one
        transaction, unless that takes too long.

        Args:
            letters: wanted letters of `partition`.
            reached: the offset below which `partition` has no others.
            keep: write the position though none is chosen.
        """

        def plan(
            position: ReplayPosition, some: Sequence[DeadLetter]
        ) -> tuple[list[_Record] | None, ReplayPosition, list[_Record]]:
            is_last = len(some) == len(letters)
            chosen, end = self._chosen(some, position, reached if is_last else some[-1].offset + 1)
            records = self._records(chosen) if chosen else []
            written = records if records or keep else None
            return written, position.moved(partition, end, *self._selected), records

        while True:
            records, letters = run.write(letters, plan)
            self._count(records)
            if not letters or self._left == 0:
                return

    def _chosen(
        self, letters: Sequence[DeadLetter], position: ReplayPosition, reached: int
    ) -> tuple[list[DeadLetter], int]:
        """Selects letters that are not replayed yet, and the offset below which none remains."""
        wanted = [letter for letter in letters if not position.has(letter)]
        if self._left is not None and len(wanted) >= self._left:
            wanted = wanted[: self._left]
            reached = wanted[-1].offset + 1
        return wanted, reached

    def _records(self, letters: list[DeadLetter]) -> list[_Record]:
        outgoing = [
            letter.replayed(
                self._settings.timer_topics,
                self._why_no_target,
                self._wanted.to_topic,
                self._settings.timer.reply_topic,
            )
            for letter in letters
        ]
        self._refuse_closed_targets(letters, outgoing)
        topics = {out.topic for out in outgoing if isinstance(out, Outgoing)}
        targets = self._ledger.resolve([self._settings.dead_letter_topic, *sorted(topics)])
        hashes = key_hashes(binary(letter.key for letter in letters)).tolist()
        records = [
            self._letter_again(letter, out, targets)
            if isinstance(out, Rejection)
            else self._message(letter, out, targets, key_hash)
            for letter, out, key_hash in zip(letters, outgoing, hashes, strict=True)
        ]
        refusals = self._ledger.refusals(records, targets)
        return [
            self._unless_refused(letter, record, refusal, targets)
            for letter, record, refusal in zip(letters, records, refusals, strict=True)
        ]

    def _refuse_closed_targets(
        self, letters: list[DeadLetter], outgoing: list[Outgoing | Rejection]
    ) -> None:
        """Replaces messages whose timer topic is still not open for their target: ingest would make
        dead letters of them again, which a dry run could not count.
        """
        by_topic: dict[str, list[int]] = {}
        for index, (letter, out) in enumerate(zip(letters, outgoing, strict=True)):
            if letter.code == NOT_ALLOWED and isinstance(out, Outgoing) and out.is_request:
                by_topic.setdefault(out.topic, []).append(index)
        for topic, of_topic in by_topic.items():
            requests = [
                (letters[index].key, letters[index].value, letters[index].message_headers)
                for index in of_topic
            ]
            previews = previews_of(self._contract, topic, requests, self._clock.now_ms())
            for index, preview in zip(of_topic, previews, strict=True):
                rejection = preview.rejection
                if rejection is not None and rejection.code == NOT_ALLOWED:
                    outgoing[index] = rejection

    def _message(
        self,
        letter: DeadLetter,
        out: Outgoing,
        targets: Mapping[str, Target],
        key_hash: int,
    ) -> _Record:
        """Encodes the message, for its requested partition if that exists or is needed."""
        target, partition = targets[out.topic], out.partition
        is_missing = partition >= target.partitions and not out.partition_needed
        if partition == NO_PARTITION or is_missing:
            partition = target.partition_of(key_hash, self._sticky)
        return _new_record(letter, out.topic, partition, out.headers)

    def _unless_refused(
        self,
        letter: DeadLetter,
        record: _Record,
        refusal: Rejection | None,
        targets: Mapping[str, Target],
    ) -> _Record:
        """The record, or again the dead letter if Kafka would refuse its message now."""
        if record.refusal is not None:
            return record
        target = targets[record.topic]
        if refusal is None and not target.takes_writes(record.partition):
            why = f"topic {record.topic!r} takes no writes for now: {target.why_unavailable}"
            refusal = Rejection(Reason.TARGET_UNAVAILABLE.code, why)
        return record if refusal is None else self._letter_again(letter, refusal, targets)

    def _letter_again(
        self, letter: DeadLetter, refusal: Rejection, targets: Mapping[str, Target]
    ) -> _Record:
        """Encodes the same dead letter, with the present reason if the record has room for it."""
        topic = self._settings.dead_letter_topic
        record = _new_record(letter, topic, letter.partition, letter.again(refusal), refusal)
        if record.bytes_alone > targets[topic].batch_bytes_max:
            return replace(record, headers=letter.headers)
        return record

    def _count(self, records: list[_Record]) -> None:
        if self._left is not None:
            self._left -= len(records)
        self._topics.update(record.topic for record in records if record.refusal is None)
        self._refused.update(record.refusal.code for record in records if record.refusal)


def _new_record(
    letter: DeadLetter,
    topic: str,
    partition: int,
    headers: Sequence[Header],
    refusal: Rejection | None = None,
) -> _Record:
    name = position_text(letter.partition, letter.offset).encode()
    return _Record(name, topic, partition, letter.key, letter.value, headers, refusal)
