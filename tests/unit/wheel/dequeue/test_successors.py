"""A recurring timer through engine, loop and timer topic: seed, firings and their copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.publishers import RecordingPublisher
from tests.harness.source_table import SourceRow, as_table, read_records
from tests.harness.timer_rows import P0, TIMER_TOPIC, headers_of, suite_parameters

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress
from duewheel.schemas.batches import ANY_TIME, Deliveries
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.topic_settings import TopicContract
from duewheel.schemas.wire.single_record import header
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue.routing import route
from duewheel.wheel.policies.expiry import Expiry
from duewheel.wheel.policies.hot_slots import HotSlots
from duewheel.wheel.policies.rate import Rate
from duewheel.wheel.publisher_protocol import Prepared
from duewheel.wheel.recurrence import HEADERS, PAUSED_MS, parted
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES
from duewheel.wheel.target_rules import Reason, Target

RULES = compile_suite(load_suite(), suite_parameters())
CONTRACT = Contract((1_000,), {}, "dead", RULES, TopicContract(recurring=True))
WHEEL = WheelConfig(1_000, 4_000, window_ms=3_600_000, margin_ms=0)
MINUTE_MS = 60_000
Header = tuple[str, bytes | None]


class RecurringWorld(LocalWorld):
    """A shard whose copies come back, parsed as any record is."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(path, WHEEL, starts={P0: 0}, **settings)
        self.topic = list[SourceRow]()
        self.fired = list[tuple[bytes, int, int]]()  # id, due time, and when it left
        self._taken = self._seen = 0

    def write(self, *headers: Header, value: bytes = b"v") -> int:
        at = len(self.topic)
        row = SourceRow(at, self.clock.now_ms(), [("REAL_TOPIC", b"orders"), *headers])
        self.topic.append(row._replace(key=b"k", value=value))
        return at

    def every(self, text: bytes, *more: Header, name: bytes = b"tick") -> int:
        return self.write(("UNIQ_KEY", name), ("TIMER_EVERY", text), ("own", b"1"), *more)

    def ingest(self) -> None:
        if new := self.topic[self._taken :]:
            self._taken = len(self.topic)
            batch = parse(read_records(as_table(new)), CONTRACT)
            assert not batch.rejected.any(), batch.rejections()
            self.engine.append(batch, {P0: self._taken})

    def run(self, seconds: int, step_s: int = 1) -> None:
        for _ in range(0, seconds, step_s):
            self.clock.sleep(step_s)
            self.turn()

    def turn(self) -> None:
        self.ingest()
        self.drain()
        self.hear()
        self.ingest()

    def hear(self) -> None:
        """Copies come back; what left is noted."""
        new, self._seen = self.publisher.committed[self._seen :], len(self.publisher.committed)
        for deliveries, _ in new:
            for row in range(0 if deliveries is None else len(deliveries)):
                assert deliveries is not None
                found = _row(deliveries, row)
                if deliveries.is_copy[row]:
                    assert deliveries.targets[deliveries.target[row]] == TIMER_TOPIC
                    copy = SourceRow(len(self.topic), self.clock.now_ms(), found)
                    self.topic.append(copy._replace(key=b"k", value=b"v"))
                elif not deliveries.dead_letter[row]:
                    due_ms = int(deliveries.due_ms[row])
                    assert found == [("own", b"1")]
                    self.fired.append(
                        (deliveries.timer_id[row].as_py(), due_ms, self.clock.now_ms())
                    )

    @property
    def instants(self) -> list[int]:
        """Due times of the firings, in seconds from the start."""
        return [(due_ms - NOW_MS) // 1000 for _, due_ms, _ in self.fired]


def _row(deliveries: Deliveries, row: int) -> list[tuple[str, bytes]]:
    return headers_of(deliveries.headers[row].as_py(), int(deliveries.header_count[row]))


class NumberedPublisher(RecordingPublisher):
    """Keeps id, without due time, and row of each delivery."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.numbered = list[list[tuple[bytes, int]]]()

    def renew(self, prepared: Prepared, progress: Progress) -> Prepared:
        names = prepared.deliveries.timer_id.to_pylist()
        ids = [(name or b"").rstrip(b"0123456789") for name in names]
        if prepared.row is not None:
            self.numbered.append(list(zip(ids, prepared.row.tolist(), strict=True)))
        return super().renew(prepared, progress)


@pytest.fixture
def world(tmp_path: Path) -> RecurringWorld:
    return RecurringWorld(tmp_path)


def test_each_instant_fires_once_with_an_id_of_its_own(world: RecurringWorld) -> None:
    world.every(b"10s")
    world.run(65)
    assert world.instants == [10, 20, 30, 40, 50, 60]
    assert [name for name, *_ in world.fired] == [
        b"tick@%d" % (NOW_MS + n * 10_000) for n in range(1, 7)
    ]
    assert all(due_ms <= left_ms for _, due_ms, left_ms in world.fired)
    statistics = world.dequeue.statistics
    assert (statistics.delivered, sum(statistics.rolled.values())) == (6, 7)
    world.kill()


def test_a_firing_and_its_successor_are_in_one_transaction(world: RecurringWorld) -> None:
    world.every(b"10s")
    world.run(35)
    for deliveries, _ in world.publisher.committed:
        if deliveries is not None and (~deliveries.is_copy).any():
            assert deliveries.is_copy.tolist() == [False, True]
            assert deliveries.source.to_pylist()[0] == b"timers-0@0", "that of the seed"
    world.kill()


def test_a_delivery_and_its_successor_have_the_row_of_their_timer(tmp_path: Path) -> None:
    """A chunk is cut between rows, and cancelled ones count."""
    world = RecurringWorld(tmp_path, publisher=NumberedPublisher)
    for name in (b"cancelled", b"before"):
        world.write(("UNIQ_KEY", name), ("TIMER_DELAY_MS", b"20000"), ("own", b"1"))
    for name in (b"x", b"y"):
        world.every(b"10s", name=name)
    world.run(11)
    world.write(("UNIQ_KEY", b"after"), ("TIMER_DELAY_MS", b"9000"), ("own", b"1"))
    cancel: list[Header] = [("TIMER_DEL_UNIQKEY", b"cancelled")]
    world.topic.append(SourceRow(len(world.topic), world.clock.now_ms(), cancel))
    world.run(12)
    rows = [(b"before", 1), (b"x@", 2), (b"y@", 3), (b"after", 4), (b"x", 2), (b"y", 3)]
    assert isinstance(world.publisher, NumberedPublisher)
    assert rows in world.publisher.numbered
    world.kill()


def test_kills_and_doubts_neither_lose_nor_double_an_instant(world: RecurringWorld) -> None:
    chance = np.random.default_rng(7)
    world.every(b"5s")
    world.publisher.fate = lambda: str(
        chance.choice(["commit", "lose", "doubt"], p=[0.6, 0.2, 0.2])
    )
    for _ in range(60):
        world.run(5)
        if chance.random() < 0.3:
            world.restart(*([Role.DEQUEUE], [Role.INGEST], [])[int(chance.integers(3))])
    world.publisher.fate = lambda: "commit"
    world.run(60)
    last = max(world.instants)
    assert world.instants == list(range(5, last + 5, 5))
    assert last >= 250
    world.kill()


def test_a_cancel_stops_it_and_a_reschedule_replaces_it(world: RecurringWorld) -> None:
    world.every(b"10s")
    world.run(25)
    world.every(b"7s", ("TIMER_RESCHEDULE", b"true"))
    world.run(25)
    assert world.instants[:2] == [10, 20]
    assert world.instants[2:] == [32, 39, 46]
    world.topic.append(
        SourceRow(len(world.topic), world.clock.now_ms(), [("TIMER_DEL_UNIQKEY", b"tick")])
    )
    world.run(60)
    assert len(world.instants) == 5
    world.kill()


def test_a_change_does_not_fire_an_instant_again(world: RecurringWorld) -> None:
    """Written before the instant and taken after it: the former timer has fired at it."""
    named: Sequence[Header] = (("UNIQ_KEY", b"tick"), ("own", b"1"))
    world.write(*named, ("TIMER_CRON", b"*/10 * * * * *"))
    world.run(29)
    at = world.write(*named, ("TIMER_CRON", b"*/10 * * * * *"), ("TIMER_RESCHEDULE", b"true"))
    late = world.topic.pop(at)
    world.run(2)
    assert world.instants == [10, 20, 30]
    world.topic.append(late._replace(offset=len(world.topic)))
    world.run(20)
    assert world.instants == [10, 20, 30, 40, 50]
    world.kill()


def test_neither_reply_nor_chase_has_a_recurrence(world: RecurringWorld) -> None:
    world.every(b"10s")
    world.run(5)
    world.every(b"10s", ("TIMER_RESCHEDULE", b"true"))
    world.run(5)
    commit = world.shard.directory(Role.INGEST).state.commit()
    (hour,) = commit.cancels
    log = world.shard.directory(Role.INGEST).cancels
    rows = log.read(hour, log.records(hour, 0, RECORD_BYTES), np.zeros(1, np.int64))
    assert headers_of(rows.requests.headers[0].as_py(), 1) == [("own", b"1")]
    assert rows.requests.prefix["header_count"].tolist() == [1]
    world.kill()


@pytest.mark.parametrize(
    ("missed", "wanted"), [(b"skip", []), (b"one", [590]), (b"all", list(range(30, 600, 10)))]
)
def test_missed_instants(tmp_path: Path, missed: bytes, wanted: list[int]) -> None:
    world = RecurringWorld(tmp_path)
    world.every(b"10s", ("TIMER_MISSED", missed))
    world.run(25)
    world.clock.sleep(630)  # of which the last minute is not missed
    world.run(90)  # a firing in each slot at most, here of a second, until it has caught up
    assert world.instants == [10, 20, *wanted, *range(600, 750, 10)]
    assert world.dequeue.statistics.missed == (missed != b"all")
    world.kill()


def test_instants_beyond_the_window_roll(world: RecurringWorld) -> None:
    world.every(b"1d", ("TIMER_STARTS_MS", b"%d" % (NOW_MS + 5 * 3_600_000)))
    world.run(30 * 3600, 300)
    assert world.instants == [5 * 3600, 29 * 3600]
    assert world.dequeue.statistics.delivered == 2
    world.kill()


def test_a_pause_rolls_and_never_fires(world: RecurringWorld) -> None:
    world.every(b"10s", ("TIMER_PAUSED", b"until the move is done"))
    world.run(3 * 3600, 60)
    assert world.fired == []
    copies = [row for row in world.topic if ("TIMER_PAUSED", b"until the move is done") in row[2]]
    assert len(copies) >= 3
    assert dict(copies[-1].headers)["TIMER_DELIVER_MS"] == b"%d" % PAUSED_MS
    world.every(b"10s", ("TIMER_RESCHEDULE", b"true"))
    world.run(35)
    assert len(world.fired) == 3
    world.kill()


def test_it_ends(world: RecurringWorld) -> None:
    world.every(b"10s", ("TIMER_ENDS_MS", b"%d" % (NOW_MS + 30_000)))
    world.run(120)
    assert world.instants == [10, 20, 30]
    assert len(world.topic) == 4, "the last firing has no successor"
    world.kill()


def test_what_cannot_be_computed_is_a_dead_letter_that_can_be_replayed(
    world: RecurringWorld,
) -> None:
    cron: Sequence[Header] = (
        ("TIMER_CRON", b"0 8 * * *"),
        ("TIMER_ZONE", b"Atlantis/Capital"),
        ("REAL_QID", b"2"),
        ("own", b"1"),
    )
    world.write(("UNIQ_KEY", b"tick"), *cron)
    world.every(b"10s", name=b"other")
    world.run(25)
    (letter,) = (
        (deliveries, row)
        for deliveries, _ in world.publisher.committed
        if deliveries is not None
        for row in np.flatnonzero(deliveries.dead_letter).tolist()
    )
    headers = _row(*letter)
    request = [
        *(cron[0], cron[1], cron[3], ("REAL_TOPIC", b"orders"), ("UNIQ_KEY", b"tick")),
        ("REAL_QID", b"2"),
    ]
    assert headers[:-2] == request
    assert headers[-2] == ("TIMER_ERROR_CODE", b"bad_recurrence")
    assert b"Atlantis/Capital" in (headers[-1][1] or b"")
    assert world.instants == [10, 20], "and the other fires"
    again = parse(read_records(as_table([SourceRow(9, NOW_MS, headers[:-2])])), CONTRACT)
    assert again.seed[0]
    world.kill()


def test_a_jitter_of_many_digits_is_a_number(world: RecurringWorld) -> None:
    """Python reads no integer of more than 4,300 digits: dequeue ended at it, at each start."""
    world.every(b"10s", ("TIMER_JITTER_MS", b"0" * 5_000 + b"7"))
    world.run(25)
    assert len(world.fired) == 2
    world.kill()


def test_a_transaction_has_a_bounded_number_of_recurring_rows(tmp_path: Path) -> None:
    world = RecurringWorld(tmp_path, chunk_recurring=4)
    for n in range(30):
        world.every(b"10s", name=b"t%d" % n)
    world.run(25)
    sizes = [len(d) for d, _ in world.publisher.committed if d is not None and len(d)]
    assert max(sizes) == 8, "four, and their successors"
    assert Counter(world.instants) == {10: 30, 20: 30}
    world.kill()


def test_seeds_take_no_turn_in_the_queue_of_a_target(tmp_path: Path) -> None:
    """They fire nothing: a hundred of them let the next timer of a target wait for 97 s."""
    world = RecurringWorld(tmp_path, policies=(Rate({"orders": 1.0}),))
    for n in range(20):
        world.every(b"90d", name=b"t%d" % n)
    world.run(3)
    world.every(b"10s", name=b"first")
    world.run(12)
    assert world.instants == [13]
    assert not any((d.not_before_ms > 0).any() for d, _ in world.publisher.committed if d)
    world.kill()


def test_a_transaction_has_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    world = RecurringWorld(tmp_path, chunk_bytes=4_000)
    for n in range(8):
        world.write(
            ("UNIQ_KEY", b"t%d" % n), ("TIMER_EVERY", b"10s"), ("own", b"1"), value=b"v" * 1_000
        )
    world.run(3)
    assert max(len(d) for d, _ in world.publisher.committed if d is not None) == 1
    world.kill()


def newest_firing(world: RecurringWorld) -> Deliveries:
    """The newest committed firing, and its successor."""
    committed = reversed(world.publisher.committed)
    return next(d for d, _ in committed if d is not None and len(d) == 2)


def test_its_successor_waits_for_no_target(world: RecurringWorld) -> None:
    """A firing that is parked is an ordinary timer; so is one that is in excess of its slot."""
    world.every(b"10s")
    world.run(11)
    deliveries = newest_firing(world)
    known = {
        "orders": Target(1, 1 << 20, unavailable=frozenset({0})),
        TIMER_TOPIC: Target(1, 1 << 20),
        "dead": Target(1, 1 << 20),
    }
    routed = route(deliveries, lambda _: known, frozenset(), "dead", NOW_MS)
    assert routed.aside.parked.tolist() == [0]
    headers = [dict(_row(routed.deliveries, row)) for row in range(2)]
    parked, successor = headers
    assert parked["UNIQ_KEY"] == b"tick@%d" % (NOW_MS + 10_000)
    assert "TIMER_EVERY" not in parked
    assert successor["UNIQ_KEY"] == b"tick" and successor["TIMER_EVERY"] == b"10s"
    assert "TIMER_NOT_BEFORE_MS" not in successor
    world.kill()


def test_a_refused_message_does_not_end_it(world: RecurringWorld) -> None:
    """A broker that refuses the message of a firing refuses its source, that of the seed."""
    world.every(b"10s")
    world.run(11)
    deliveries = newest_firing(world)
    known = {name: Target(1, 1 << 20) for name in ("orders", TIMER_TOPIC, "dead")}
    refused = frozenset({deliveries.source[0].as_py()})
    routed = route(deliveries, lambda _: known, refused, "dead", NOW_MS)
    assert routed.aside.reasons == {Reason.RECORD_REFUSED.name.lower(): 1}
    assert routed.deliveries.is_copy.tolist() == [False, True]
    world.kill()


def test_a_firing_in_excess_of_its_slot_is_spread_and_not_its_successor(tmp_path: Path) -> None:
    hot = HotSlots("spread", limit=1, window_ms=5_000)
    world = RecurringWorld(tmp_path, policies=(hot,))
    for n in range(6):
        world.every(b"10s", name=b"t%d" % n)
    world.run(11)
    deliveries = next(
        d for d, _ in reversed(world.publisher.committed) if d is not None and len(d) == 12
    )
    excess = deliveries.not_before_ms != ANY_TIME
    assert excess.any() and not excess[deliveries.is_copy].any()
    world.kill()


def test_an_expired_firing_is_dropped_and_its_successor_goes_on(tmp_path: Path) -> None:
    expiry = Expiry({TIMER_TOPIC: 5_000}, drop=frozenset({TIMER_TOPIC}))
    world = RecurringWorld(tmp_path, policies=(expiry,))
    world.every(b"10s", ("TIMER_MISSED", b"all"))
    world.run(11)
    world.clock.sleep(40)
    world.run(25)
    assert world.instants == [10, 50, 60, 70]
    assert (world.dequeue.statistics.dropped, world.dequeue.statistics.dead_letters) == (3, {})
    world.kill()


RECURRING_NAMES = [name.decode() for name in sorted(HEADERS)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(RECURRING_NAMES) | st.text(max_size=70),
            st.none() | st.binary(max_size=200),
        ),
        max_size=30,
    )
)
def test_the_headers_of_a_recurrence_are_told_from_the_others(each_header: list[Header]) -> None:
    encoded = b"".join(header(*each) for each in each_header)
    own = {name.encode(): value or b"" for name, value in each_header if name.encode() in HEADERS}
    others = [each for each in each_header if each[0].encode() not in HEADERS]
    rest = b"".join(header(*each) for each in others)
    assert parted(encoded, len(each_header)) == (own, rest, len(others))
