"""kill -9 of the real processes at named places: nothing lost, doubled, early or out of order.

Real Kafka and Spark, `duewheel ingest` and `duewheel dequeue` by way of fault_points.py, and a
read_committed consumer that knows nothing of them. `make test` meets every point of dequeue's and
one of ingest's, one after the other, with no quiet start between; `make crash-matrix` meets all of
them, both processes in turn, and judges everything after each.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.crash.fault_shard import (
    CLOCK,
    DEADLINE_S,
    FAULTS,
    LOAD,
    POINTS,
    PRECISION_MS,
    FaultShard,
    durable_slot,
    hours,
    mirrored_slot,
    process_of,
)
from tests.harness.shared_broker import SharedBroker

from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import hour_name

# These need more than a load of timers, and have tests of their own.
HALF_REDONE, IDLE = "dequeue.half_redone", "dequeue.idle_committed"
COLLECT = [
    "collect.bounds_unwritten",
    "collect.locked",
    "collect.gc_hour_raised",
    "collect.log_unlinked",
    "collect.unlinked",
]
# These come without timers, in this order.
STARTING = [
    f"dequeue.{step}"
    for step in (
        *("role_taken", "id_taken", "progress_read", "bounds_unwritten", "undecided"),
        *("deciding", "decided"),
    )
]
# At a start that finds all as it was nothing is written down of what cancels may rely on.
BOUNDS = "dequeue.bounds_unwritten"
CLOSING = ["dequeue.closing", "dequeue.close_page_half", "dequeue.floor_set"]
# On the way of a cancel, in this order.
CANCELLING = [
    "ingest.request_written",
    "ingest.cancels_written",
    "ingest.cancelled_written",
    "ingest.cancelled_unmarked",
    "ingest.cancelled_half_marked",
    "ingest.cancelled_marked",
    "dequeue.outcomes_read",
    "dequeue.answers_made",
    "dequeue.answers_begun",
    "dequeue.answers_queued",
    "dequeue.answers_uncommitted",
    "dequeue.answers_commit_sent",
    "dequeue.answers_commit_answered",
    "dequeue.answers_unmirrored",
]
# On the way of a cancel that is written again, in this order.
CHASING = [
    "dequeue.chases_begun",
    "dequeue.chases_queued",
    "dequeue.chases_commit_sent",
    "dequeue.chases_commit_answered",
    "dequeue.chases_unmirrored",
    "dequeue.chases_mirrored",
    "ingest.chase_unresolved",
    "ingest.chase_committed",
    "ingest.chase_marked",
]

DEQUEUE = [
    name
    for name in POINTS
    if name.startswith("dequeue.")
    and name not in {HALF_REDONE, IDLE, BOUNDS, *CANCELLING, *CHASING}
]
DELIVERING = [name for name in DEQUEUE if name not in {*STARTING, *CLOSING}]
INGEST = [
    name
    for name in POINTS
    if name.startswith(("ingest.", "durable.")) and name not in {*CANCELLING, *CHASING}
]
# Every point of both processes, a pair at a time.
ROUNDS = [
    (INGEST[number % len(INGEST)], DEQUEUE[number % len(DEQUEUE)])
    for number in range(max(len(INGEST), len(DEQUEUE)))
]
TWICE = {"ingest.appended", "ingest.commit_page_written", "dequeue.commit_answered"}

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("java"),
]


def test_every_point_is_at_a_method_that_exists() -> None:
    for point in POINTS.values():
        for place in (point.place, point.inside, point.stall, *point.since):
            assert not place or callable(FAULTS["found"](place)[2])


# ---- one after the other ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shard(broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultShard]:
    """Ingest is starting, and the shard began an hour ago."""
    path = tmp_path_factory.mktemp("points")
    name = f"points-{CLOCK.now_ms()}"
    shard = FaultShard(path, broker.bootstrap_servers, name, slots=100_000, margin="5m")
    with closing(shard):
        shard.init(hour_behind=True)
        shard.start("ingest")
        yield shard


@pytest.mark.parametrize("point", STARTING)
def test_dequeue_killed_at_its_start(shard: FaultShard, point: str) -> None:
    """Its first starts, while Spark starts beside it."""
    shard.die_at(point, hour_behind=True)


def test_garbage_collection_killed_at_every_step(shard: FaultShard) -> None:
    """An hour of the past is given up, then its log is unlinked, then its messages are."""
    shard.send()
    shard.start("dequeue", hour_behind=True)
    shard.wait(lambda: len(shard.seen) == 3 * LOAD // 10)  # due two hours ago, or rejected
    shard.kill("dequeue")
    past = hours(shard, "timerlog")[0]
    shard.start("dequeue")
    shard.wait(lambda: hour_to_come(mirrored_slot(shard)) > past)
    shard.kill("dequeue")
    shard.wait(lambda: hour_to_come(durable_slot(shard)) > past)
    left = []
    for point in COLLECT:
        shard.die_at(point)
        left.append([past in hours(shard, folder) for folder in ("timerlog", "messages")])
    assert left == [[True, True]] * 3 + [[False, True], [False, False]]
    shard.judge()


@pytest.mark.parametrize("point", DELIVERING)
def test_dequeue_killed(shard: FaultShard, point: str) -> None:
    """No quiet start between: what one start leaves is what the next one is killed on."""
    shard.send()
    shard.die_at(point)
    shard.judge()


@pytest.mark.crash_matrix
def test_ingest_killed_too_and_everything_delivered(shard: FaultShard) -> None:
    """Dequeue is killed while Spark starts, then ingest; then both may run, and all comes out."""
    shard.kill("ingest")
    shard.send()
    shard.start("ingest", "ingest.half_applied")
    for point in CLOSING:
        shard.die_at(point)
    shard.start("dequeue")
    shard.dies_at("ingest.half_applied")
    shard.judge()
    shard.start("ingest")
    shard.kill("dequeue")
    shard.die_at(IDLE)
    shard.start("dequeue")
    shard.judge_all()


def hour_to_come(delivered_slot: int) -> str:
    return hour_name(hour_of(delivered_slot + 1, PRECISION_MS))


# ---- each on its own, and judged: make crash-matrix ---------------------------------------------


@pytest.fixture(scope="module")
def small_shard(
    broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultShard]:
    """The ring is eight seconds: many laps, and full while dequeue is away."""
    path = tmp_path_factory.mktemp("matrix")
    name = f"matrix-{CLOCK.now_ms()}"
    shard = FaultShard(path, broker.bootstrap_servers, name, slots=80, margin="1s")
    with closing(shard):
        shard.init()
        yield shard


def both_running(shard: FaultShard) -> FaultShard:
    """Whatever a test before has left."""
    for name in ("dequeue", "ingest"):
        child = shard.processes.get(name)
        if child is not None and child.exit_code is not None:
            del shard.processes[name]
        if name not in shard.processes:
            shard.start(name)
    return shard


@pytest.fixture
def small(small_shard: FaultShard) -> FaultShard:
    return both_running(small_shard)


def kill_ingest_at(shard: FaultShard, point: str) -> None:
    """Ingest dies at the point, dequeue lives."""
    for _ in range(1 + (point in TWICE)):
        shard.send()
        shard.die_at(point)


def kill_dequeue_at(shard: FaultShard, point: str) -> None:
    """Dequeue dies at the point; the timers that lead it there come in meanwhile."""
    for _ in range(1 + (point in TWICE)):
        shard.send()
        shard.die_at(point)
    shard.start("dequeue")


@pytest.mark.crash_matrix
@pytest.mark.parametrize(("ingest", "dequeue"), ROUNDS)
def test_both_killed_in_turn(small: FaultShard, ingest: str, dequeue: str) -> None:
    small.kill("ingest")
    kill_ingest_at(small, ingest)
    small.start("ingest")
    small.kill("dequeue")
    kill_dequeue_at(small, dequeue)
    small.judge_all()


@pytest.mark.crash_matrix
@pytest.mark.parametrize("point", CANCELLING)
def test_killed_on_the_way_of_a_cancel(small: FaultShard, point: str) -> None:
    """Twice in the same place: the second time on what the first one has left."""
    name = process_of(point)
    small.kill(name)
    for _ in range(2):
        small.send()
        small.die_under_load_at(point)
    small.start(name)
    small.judge_all()


@pytest.mark.crash_matrix
@pytest.mark.parametrize("point", CHASING)
def test_killed_on_the_way_of_a_cancel_that_is_written_again(small: FaultShard, point: str) -> None:
    """Of timers of the load before, which have left: all of it is judged before the next one."""
    name = process_of(point)
    if not small.loads:
        small.send()
    for _ in range(2):
        small.judge_all()
        small.kill(name)
        small.send()
        small.die_under_load_at(point)
        small.start(name)
    small.judge_all()


@pytest.mark.crash_matrix
def test_dequeue_killed_while_it_redoes_the_batch_on_which_ingest_was_killed(
    small: FaultShard,
) -> None:
    for point in ("ingest.commit_page_written", "ingest.half_applied"):
        small.kill("ingest")
        small.kill("dequeue")
        small.send()
        small.start("dequeue", HALF_REDONE)
        small.die_at(point)
        small.dies_at(HALF_REDONE)
        small.start("dequeue")
        small.start("ingest")
        small.judge_all()


@pytest.mark.crash_matrix
def test_dequeue_killed_when_nothing_is_due(small: FaultShard) -> None:
    small.judge_all()
    small.kill("dequeue")
    small.die_at(IDLE)
    small.send()
    small.start("dequeue")
    small.judge_all()


def pause(shard: FaultShard, *, on: bool) -> None:
    subprocess.run(
        shard.line("pause" if on else "resume", "dequeue"),
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
