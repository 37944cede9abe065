"""Named points at which a process of a shard can kill itself, and the script that does so.

    fault_points.py --point ingest.applied --mark FILE -- ingest --config duewheel.toml

runs `duewheel ingest --config duewheel.toml` with one method wrapped: where the point says, the
process makes FILE and ends by SIGKILL. The product knows nothing of it. A point whose method is
gone ends the process with an error instead; one that is never reached leaves it running.

The points follow the numbered steps of wheel/append/engine.py, wheel/dequeue/loop.py,
wheel/dequeue/cancel_replies.py, streaming/sink.py, checkpoints/durable_checkpoint.py and
retention.collect. What comes before the first dot names the process: `ingest` and `durable` are
ingest's, `dequeue`, `collect` and `settings` are dequeue's, and
`relay` those of `duewheel relay`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HOUR_MS = 3_600_000
COLLECT_MS = 200  # between looks for garbage, which are a minute apart otherwise
STALL_S = 0.4  # long enough for the other process to close several slots

LIVE = "duewheel.checkpoints.live_fields:LiveFields"
STATE = "duewheel.checkpoints.state_file:State"
TAKE = "duewheel.wheel.admin.change_settings:take"
STORE = "duewheel.checkpoints.checksummed_pages:PagePair._store"
RENAME = "duewheel.checkpoints.fs:FileSystem.replace"
ENGINE = "duewheel.wheel.append.engine:Engine"
STAGED = "duewheel.wheel.append.staged_batch:StagedBatch"
SINK = "duewheel.streaming.sink:TimerSink"
APPLY = "duewheel.wheel.storage.data_directory:DataDirectory.append_runs"
WRITE = "duewheel.wheel.storage.hour_files:HourFiles.write"
READ = "duewheel.wheel.dequeue.decode:decode_chunk"
LOAD_CANDIDATES = "duewheel.wheel.append.cancel_files:CancelFiles.load_candidates"
WRITE_AT = "duewheel.checkpoints.fs:FileSystem.write_at"
MARK = "duewheel.wheel.storage.timer_log:TimerLog.mark_cancelled"
COLLECT = "duewheel.wheel.storage.garbage_collection:collect"
BOUNDS = "duewheel.checkpoints.cancel_bounds:CancelBounds.write"
CANCEL_LOG = "duewheel.wheel.storage.cancel_log:CancelLog"
ANSWERS = "duewheel.wheel.dequeue.cancel_reply_rows:reply_rows"
REPLIES = "duewheel.wheel.dequeue.cancel_replies:CancelReplies"
CHASES = f"{REPLIES}.next"
UNLINK = "duewheel.wheel.storage.hour_files:HourFiles.unlink_below"
OUTBOX = "duewheel.ops.relay.outbox_table:OutboxTable"
NEXT_ROWS = f"{OUTBOX}.next_rows"
INTERNALS = "duewheel.kafka.ledger.producer_internals"
PRODUCER = "kafka:KafkaProducer"
TRANSACTIONS = "kafka.producer.transaction_manager"
COMMIT = f"{TRANSACTIONS}:TransactionManager.begin_commit"
COMMIT_ANSWER = f"{TRANSACTIONS}:EndTxnHandler.handle_response"

Method = Callable[..., Any]


@dataclass(frozen=True)
class Point:
    """Where to die.

    Attributes:
        place: "module:Class.method" or "module:function".
        when: "before" or "after" a call; "half": after half of what HALVES knows to divide.
        call: at the how-manieth call that counts.
        since: calls count once each of these, in this order, has returned; what COUNTS says of it.
        inside: calls count while this one runs.
        stall: this one takes STALL_S longer, so that the other process goes on meanwhile.
    """

    place: str
    when: str
    call: int = 1
    since: tuple[str, ...] = ()
    inside: str = ""
    stall: str = ""


before = functools.partial(Point, when="before")
after = functools.partial(Point, when="after")
# A page is three stores: payload, head, sequence. Before the third one there is no page.
half_page = functools.partial(Point, STORE, "before", 3)

POINTS = {
    # ingest's start: role, engine (redo and cut), Spark's checkpoint
    "ingest.role_taken": after(f"{STATE}.begin"),
    "ingest.engine_opened": after(f"{ENGINE}.__init__"),
    "ingest.checkpoint_settled": after("duewheel.runtime.ingest_process:settle_checkpoint"),
    # Spark has planned a batch; its rows are timers, new ones
    "ingest.planned": before(f"{SINK}.__call__"),
    "ingest.parsed": before(f"{ENGINE}.append"),
    # engine 3.: topic names, messages, log records
    "ingest.topics_named": after("duewheel.wheel.storage.topic_numbers:TopicNames.ids"),
    "ingest.messages_appended": after(WRITE),
    "ingest.appended": after(WRITE, call=2),
    # what cancels: the requests, then their records
    "ingest.request_written": after(WRITE, inside=f"{CANCEL_LOG}.write"),
    "ingest.cancels_written": after(f"{CANCEL_LOG}.write"),
    "ingest.cancelled_written": after(f"{STAGED}.write_cancelled"),
    # engine 6. with cancels: the batch exists, and what it cancels is not marked; half of that is
    "ingest.cancelled_unmarked": before(MARK),
    "ingest.cancelled_half_marked": Point(MARK, "half"),
    "ingest.cancelled_marked": after(MARK),
    # a batch that has a chase
    "ingest.chase_unresolved": before(f"{CANCEL_LOG}.write", since=(LOAD_CANDIDATES,)),
    "ingest.chase_committed": after(f"{STATE}.write_commit", since=(LOAD_CANDIDATES,)),
    "ingest.chase_marked": after(f"{STATE}.mark_applied", since=(LOAD_CANDIDATES,)),
    # engine 4.: slots were closed meanwhile
    "ingest.rows_abandoned": after(f"{STAGED}.abandon", stall=f"{STAGED}.write"),
    "ingest.rows_moved": after(
        f"{STAGED}.move_closed",
        since=(f"{STAGED}.abandon",),
        stall=f"{STAGED}.write",
    ),
    # engine 5. and 6.: the commit page, the wheel, the mark
    "ingest.page_unwritten": before(f"{STATE}.write_commit"),
    "ingest.commit_page_half": half_page(inside=f"{STATE}.write_commit"),
    "ingest.commit_page_written": after(f"{STATE}.write_commit"),
    "ingest.half_applied": Point(APPLY, "half", since=(WRITE,)),
    "ingest.applied": after(APPLY, since=(WRITE,)),
    "ingest.marked": after(f"{STATE}.mark_applied", since=(WRITE,)),
    # the batch is the engine's, and not yet Spark's; then Spark's too, and the next one planned
    "ingest.spark_uncommitted": after(f"{SINK}.__call__"),
    "ingest.spark_committed": before(f"{SINK}.__call__", call=2),
    # the durable checkpoint, beside the engine
    "durable.taken": after("duewheel.checkpoints.durable_checkpoint:take_durable"),
    "durable.synced": before("duewheel.checkpoints.durable_checkpoint:Durable.write"),
    "durable.renaming": before(
        RENAME, inside="duewheel.checkpoints.durable_checkpoint:Durable.write"
    ),
    "durable.written": after("duewheel.checkpoints.durable_checkpoint:Durable.write"),
    # dequeue's start: role, transactional id, progress, decision
    "dequeue.role_taken": after(f"{STATE}.count_dequeue_start"),
    "dequeue.id_taken": after(f"{PRODUCER}.init_transactions"),
    "dequeue.progress_read": after("duewheel.kafka.progress.shard_progress:ShardProgress.read"),
    "dequeue.bounds_unwritten": before(BOUNDS),
    "dequeue.undecided": before("duewheel.checkpoints.local_state:RecoveryRecord.write"),
    "dequeue.deciding": before(
        RENAME, inside="duewheel.checkpoints.local_state:RecoveryRecord.write"
    ),
    "dequeue.decided": after("duewheel.checkpoints.local_state:RecoveryRecord.write"),
    # whoever takes the lock first redoes a batch that ingest left half applied
    "dequeue.half_redone": Point(APPLY, "half"),
    # dequeue 1.: floor and C
    "dequeue.closing": before(f"{STATE}.write_close"),
    "dequeue.close_page_half": half_page(inside=f"{STATE}.write_close"),
    "dequeue.floor_set": after(f"{STATE}.write_close"),
    # dequeue 2.: records found, messages read
    "dequeue.records_found": after("duewheel.wheel.dequeue.slot_scan:SlotScan.next_chunk"),
    "dequeue.messages_read": after(READ),
    # dequeue 3.: the transaction
    "dequeue.begun": after(f"{PRODUCER}.begin_transaction", since=(READ,)),
    "dequeue.partitions_added": before(
        f"{TRANSACTIONS}:AddPartitionsToTxnHandler.handle_response", since=(READ,)
    ),
    "dequeue.queued": after(f"{INTERNALS}:enqueue", since=(READ,)),
    "dequeue.acknowledged": after(f"{INTERNALS}:await_outcomes", since=(READ,)),
    "dequeue.commit_sent": after(
        "kafka.net.transport:KafkaTCPTransport._sock_send", since=(READ, COMMIT)
    ),
    "dequeue.commit_answered": before(COMMIT_ANSWER, since=(READ,)),
    "dequeue.rolls_committed": before(
        COMMIT_ANSWER, since=("duewheel.schemas.wire.record_codec:copy_headers",)
    ),
    # dequeue 4.: the mirror; then the next chunk, and the end of the range
    "dequeue.committed_not_mirrored": before(f"{STATE}.write_mirror", since=(READ,)),
    "dequeue.mirror_half": Point(WRITE_AT, "half", inside=f"{STATE}.write_mirror", since=(READ,)),
    "dequeue.mirrored": after(f"{STATE}.write_mirror", since=(READ,)),
    "dequeue.second_chunk_committed": before(COMMIT_ANSWER, call=2, since=(READ,)),
    "dequeue.range_delivered": before(
        f"{STATE}.write_close", since=(READ, f"{STATE}.write_mirror")
    ),
    # dequeue 5.: outcomes are read
    "dequeue.outcomes_read": after(f"{CANCEL_LOG}.read"),
    # the answers, and their transaction
    "dequeue.answers_made": after(ANSWERS),
    "dequeue.answers_begun": after(f"{PRODUCER}.begin_transaction", since=(ANSWERS,)),
    "dequeue.answers_queued": after(f"{INTERNALS}:enqueue", since=(ANSWERS,)),
    "dequeue.answers_uncommitted": before(COMMIT, since=(ANSWERS,)),
    "dequeue.answers_commit_sent": after(
        "kafka.net.transport:KafkaTCPTransport._sock_send", since=(ANSWERS, COMMIT)
    ),
    "dequeue.answers_commit_answered": before(COMMIT_ANSWER, since=(ANSWERS,)),
    "dequeue.answers_unmirrored": before(f"{STATE}.write_mirror", since=(ANSWERS,)),
    # a transaction that has chases
    "dequeue.chases_begun": after(f"{PRODUCER}.begin_transaction", since=(CHASES,)),
    "dequeue.chases_queued": after(f"{INTERNALS}:enqueue", since=(CHASES,)),
    "dequeue.chases_commit_sent": after(
        "kafka.net.transport:KafkaTCPTransport._sock_send", since=(CHASES, COMMIT)
    ),
    "dequeue.chases_commit_answered": before(COMMIT_ANSWER, since=(CHASES,)),
    "dequeue.chases_unmirrored": before(f"{STATE}.write_mirror", since=(CHASES,)),
    "dequeue.chases_mirrored": before(f"{REPLIES}.committed", since=(CHASES,)),
    # nothing was due: only the progress
    "dequeue.idle_committed": before(f"{STATE}.write_mirror", call=3),
    # garbage: the bounds of cancels, gc_hour, then the log's hour, then the messages'
    "collect.bounds_unwritten": before(BOUNDS, inside=COLLECT),
    "collect.locked": before(f"{LIVE}.raise_gc_hour"),
    "collect.gc_hour_raised": after(f"{LIVE}.raise_gc_hour"),
    # The two calls before are for the files of the cancel log.
    "collect.log_unlinked": before(UNLINK, call=4),
    "collect.unlinked": after(COLLECT),
    # a segment of the cancel log: gc_cancels, then its records, then its requests
    "collect.segment_over": before(f"{LIVE}.set_gc_cancels"),
    "collect.segment_given_up": after(f"{LIVE}.set_gc_cancels"),
    "collect.segment_half_unlinked": before(UNLINK, call=2),
    "collect.segment_unlinked": before(UNLINK, call=3),
    # settings that dequeue takes while ingest runs: the steps of runtime/take_settings.py
    "settings.unplanned": before("duewheel.wheel.admin.change_settings:plan"),
    "settings.id_taken": after(f"{PRODUCER}.init_transactions", inside=TAKE),
    "settings.commit_sent": after(
        "kafka.net.transport:KafkaTCPTransport._sock_send", since=(COMMIT,), inside=TAKE
    ),
    "settings.committed": before(f"{STATE}.write_mirror", inside=TAKE),
    "settings.taken": after(TAKE),
    "settings.unclaimed": before(f"{STATE}.claim", since=(TAKE,)),
    "settings.claimed": after(f"{STATE}.claim", since=(TAKE,)),
    "settings.ended": after(f"{LIVE}.want_settings", since=(TAKE,)),
    # `relay postgres`: the first part is sent, then deleted as the second one is read
    "relay.id_taken": after(f"{PRODUCER}.init_transactions"),
    "relay.rows_read": after(NEXT_ROWS),
    "relay.begun": after(f"{PRODUCER}.begin_transaction"),
    "relay.queued": after(f"{INTERNALS}:enqueue"),
    "relay.acknowledged": after(f"{INTERNALS}:await_outcomes"),
    "relay.commit_sent": after("kafka.net.transport:KafkaTCPTransport._sock_send", since=(COMMIT,)),
    "relay.commit_answered": before(COMMIT_ANSWER),
    "relay.unrefused": before(f"{OUTBOX}.refuse"),
    "relay.refused": after(f"{OUTBOX}.refuse"),
    "relay.undeleted": before(f"{OUTBOX}._delete"),
    "relay.deleted_uncommitted": after(f"{OUTBOX}._delete"),
    "relay.deleted": after(NEXT_ROWS, call=2),
    "relay.second_part_committed": before(COMMIT_ANSWER, call=2),
}


def _has_chases(_arguments: Any, replies: Any) -> bool:
    return replies is not None and replies.chases > 0


def _looks_up_chases(arguments: Any, _candidates: Any) -> bool:
    return bool((arguments[1].chase_slot >= 0).any())


# Of these only such calls count in `since`.
COUNTS: dict[str, Callable[[Any, Any], bool]] = {
    CHASES: _has_chases,
    LOAD_CANDIDATES: _looks_up_chases,
}


def found(place: str) -> tuple[Any, str, Method]:
    """Owner, name and function of a place.

    Raises:
        AttributeError: the place is gone.
    """
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for step in owners:
        owner = getattr(owner, step)
    return owner, name, getattr(owner, name)


def wrap(place: str, wrapper: Callable[[Method], Method]) -> None:
    """Replace what is at a place. Before anything is imported that takes it from there."""
    owner, name, method = found(place)
    setattr(owner, name, functools.wraps(method)(wrapper(method)))


def _half_applied(wheel: Any, runs: Any, number: int) -> tuple[Any, ...]:
    middle = runs.slot[len(runs) // 2] if len(runs) else 0
    return wheel, runs.where(runs.slot < middle), number


def _half_marked(log: Any, hour: int, log_bytes: int, positions: Any) -> tuple[Any, ...]:
    return log, hour, log_bytes, positions[: len(positions) // 2]


def _half_written(fs: Any, fd: int, data: bytes, offset: int) -> tuple[Any, ...]:
    return fs, fd, data[: len(data) // 2], offset


HALVES: dict[str, Callable[..., tuple[Any, ...]]] = {
    APPLY: _half_applied,
    MARK: _half_marked,
    WRITE_AT: _half_written,
}


class Armed:
    """A point in force in this process."""

    def __init__(self, name: str, mark: Path) -> None:
        self._point, self._mark = POINTS[name], mark
        self._awaited = list(self._point.since)
        self._calls = 0
        self._inside = 0
        # The lowest layers first: whoever takes a function from its module finds it wrapped.
        for place in dict.fromkeys(self._point.since):
            wrap(place, functools.partial(self._awaiting, place))
        wrap(self._point.place, self._dying)
        if self._point.inside:
            wrap(self._point.inside, self._entering)
        if self._point.stall:
            wrap(self._point.stall, self._stalling)

    def _awaiting(self, place: str, method: Method) -> Method:
        def call(*arguments: Any, **named: Any) -> Any:
            result = method(*arguments, **named)
            counts = COUNTS.get(place, lambda *_: True)(arguments, result)
            if counts and self._awaited and self._awaited[0] == place:
                del self._awaited[0]
            return result

        return call

    def _entering(self, method: Method) -> Method:
        def call(*arguments: Any, **named: Any) -> Any:
            self._inside += 1
            try:
                return method(*arguments, **named)
            finally:
                self._inside -= 1

        return call

    def _stalling(self, method: Method) -> Method:
        def call(*arguments: Any, **named: Any) -> Any:
            result = method(*arguments, **named)
            time.sleep(STALL_S)
            return result

        return call

    def _dying(self, method: Method) -> Method:
        def call(*arguments: Any, **named: Any) -> Any:
            counts = not self._awaited and (self._inside or not self._point.inside)
            self._calls += bool(counts)
            last = bool(counts) and self._calls == self._point.call
            if last and self._point.when == "before":
                self._die()
            if last and self._point.when == "half":
                method(*HALVES[self._point.place](*arguments))
                self._die()
            result = method(*arguments, **named)
            if last:
                self._die()
            return result

        return call

    def _die(self) -> None:
        self._mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def set_clock(error_ms: Callable[[], int]) -> None:
    """Have this process see a time that is so far ahead."""

    def wrong(now_ms: Method) -> Method:
        return lambda clock: now_ms(clock) + error_ms()

    wrap("duewheel.clock:SystemClock.now_ms", wrong)


def collect_often() -> None:
    """Have dequeue look for garbage all the time."""

    def often(config: Method) -> Method:
        return lambda settings: replace(config(settings), collect_interval_ms=COLLECT_MS)

    wrap("duewheel.factory:dequeue_config", often)


def main() -> None:
    """See the module's head."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--point", choices=POINTS)
    parser.add_argument("--mark", type=Path)
    parser.add_argument("--hour-behind", action="store_true", help="the host's clock is wrong")
    parser.add_argument("--clock-error", type=Path, help="a file with the error, in ms; may change")
    parser.add_argument(
        "--collect-often", action="store_true", help="look for garbage all the time"
    )
    parser.add_argument("words", nargs="+", help="of the duewheel command")
    options = parser.parse_args()
    if options.point:
        Armed(options.point, options.mark)
    if options.hour_behind:
        set_clock(lambda: -HOUR_MS)
    if options.clock_error:
        set_clock(lambda: int(options.clock_error.read_text()))
    if options.collect_often:
        collect_often()
    from duewheel.cli import main as cli

    sys.argv = ["duewheel", *options.words]
    cli.main()


if __name__ == "__main__":
    main()
