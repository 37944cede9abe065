"""The original's known defects as tests that it would fail; docs/rip43.md names them.

Here are those that no other test shows by itself. They run on the engine, without Kafka and Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.publishers import RecordingPublisher
from tests.harness.source_table import SourceRow, as_table, read_records
from tests.harness.timer_rows import P0, suite_parameters

from duewheel.checkpoints.process_role import Role
from duewheel.cli.main import cli
from duewheel.config.settings import Settings
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.schemas.batches import Deliveries, TimerBatch
from duewheel.schemas.columns import join
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.wire.record_codec import added_headers
from duewheel.schemas.wire.varint import read_varint
from duewheel.testing import ManualClock
from duewheel.wheel.publisher_protocol import PublishAttempt
from duewheel.wheel.slots import HOUR_MS, WheelConfig
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES

ROOT = Path(__file__).resolve().parents[2]
PRECISION_MS = 50
WHEEL = WheelConfig(PRECISION_MS, 100_000, window_ms=HOUR_MS, margin_ms=0)
RULES = compile_suite(load_suite(), suite_parameters())
CONTRACT = Contract((1_000,), {}, "dead", RULES)
Header = tuple[str, bytes]


class StampingPublisher(RecordingPublisher):
    """Also remembers when each message left, by the host's clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.left_ms: dict[str, int] = {}

    def publish(self, attempt: PublishAttempt) -> int | None:
        answer = super().publish(attempt)
        if attempt.prepared is not None:
            for source in attempt.prepared.deliveries.source.to_pylist():
                name = (source or b"").decode()
                assert name not in self.left_ms, "not twice"
                self.left_ms[name] = self.clock.now_ms()
        return answer

    def deliveries(self) -> list[Deliveries]:
        return [deliveries for deliveries, _ in self.committed if deliveries is not None]


class DefectWorld(LocalWorld):
    """A shard of one partition that says how late each message has left."""

    publisher: StampingPublisher

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(path, WHEEL, starts={P0: 0}, publisher=StampingPublisher, **settings)

    def take(self, batch: TimerBatch) -> None:
        self.next_offset = int(batch.offset[-1]) + 1
        self.engine.append(batch, {P0: self.next_offset})

    def pass_time(self, ms: int, step_ms: int = PRECISION_MS) -> None:
        for _ in range(0, ms, step_ms):
            self.clock.sleep(step_ms / 1000)
            self.drain()

    def late_ms(self, source: str, after_ms: int) -> int:
        return self.publisher.left_ms[source] - NOW_MS - after_ms


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DefectWorld]:
    world = DefectWorld(tmp_path / "data")
    yield world
    world.kill()


def read(offset: int, timestamp_ms: int, *records: list[Header]) -> TimerBatch:
    """What ingest makes of records with these headers."""
    rows = [
        SourceRow(offset + row, timestamp_ms, headers, key=b"key", value=b"value")
        for row, headers in enumerate(records)
    ]
    return parse(read_records(as_table(rows)), CONTRACT)


def delivered_headers(deliveries: Deliveries, row: int) -> list[Header]:
    """As a consumer sees them."""
    data = join(deliveries.headers, added_headers(deliveries)[0])[row].as_py() or b""
    parts, at = [], 0
    while at < len(data):
        size, at = read_varint(data, at)
        parts.append(data[at : at + size])
        at += size
    return [(name.decode(), value) for name, value in zip(parts[::2], parts[1::2], strict=True)]


# ---- A …: the letters are those of docs/rip43.md ------------------------------------------------


def test_a_stop_in_the_middle_of_a_slot_repeats_nothing(tmp_path: Path) -> None:
    """A. Progress that counts slots repeats a slot, also after a stop in good order."""
    world = DefectWorld(tmp_path, chunk_records=100)
    sources = world.put(*[1_000] * 450)
    world.clock.sleep(1)
    world.drain(ticks=2)
    assert len(world.publisher.left_ms) == 200
    world.shard.stop(Role.DEQUEUE)
    world.shard.start_dequeue()
    world.drain()
    assert list(world.publisher.left_ms) == sources
    world.kill()


def test_a_clock_that_was_ahead_and_is_set_back_loses_and_hastens_nothing(
    world: DefectWorld,
) -> None:
    """C. A read position in the future hides new timers; a step back lets all within it go."""
    first = world.put(600_000)
    world.pass_time(200)
    world.clock.step(HOUR_MS)
    world.pass_time(3_000)
    world.restart()
    world.pass_time(1_000)
    world.clock.step(-HOUR_MS)
    world.restart()
    later = world.put(60_000, 1_200_000)
    world.pass_time(50_000, 1_000)
    assert not world.publisher.left_ms, "nothing goes at once"
    world.pass_time(1_200_000, 1_000)
    for source, due_ms in zip([*first, *later], (600_000, 60_000, 1_200_000), strict=True):
        assert 0 <= world.late_ms(source, due_ms) <= 1_000


def test_a_failed_delivery_is_tried_until_it_is_certain(world: DefectWorld) -> None:
    """E. Three attempts, and the message is dropped."""
    sources = world.put(1_000, 1_000)
    fates = iter(["lose"] * 40)
    world.publisher.fate = lambda: next(fates, "commit")
    world.clock.sleep(1)
    world.drain()
    assert list(world.publisher.left_ms) == sources
    assert next(fates, None) is None
    assert world.dequeue.statistics.doubts == 40


def test_what_is_due_leaves_while_ingest_is_stuck_in_a_batch(
    world: DefectWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F. The enqueuing thread moves the clock of delivery: if it is slow, everything is late."""
    (source,) = world.put(1_000)
    messages = world.shard.directory(Role.INGEST).messages.files
    write = messages.write

    def slow(*given: Any) -> None:
        monkeypatch.undo()
        world.pass_time(2_000)
        write(*given)

    monkeypatch.setattr(messages, "write", slow)
    (second,) = world.put(1_500)
    assert world.late_ms(source, 1_000) == 0
    world.pass_time(PRECISION_MS)
    assert world.late_ms(second, 2_000) <= PRECISION_MS, "as soon as it is there"


def test_garbage_in_the_timer_topic_holds_nobody_up(world: DefectWorld) -> None:
    """J. A record that always throws, or lacks a mark, is read again for ever."""
    good = [("TIMER_DELAY_SEC", b"1"), ("REAL_TOPIC", b"orders")]
    bad: list[list[Header]] = [
        [],
        [("TIMER_DELAY_SEC", b"\xff\xfe"), ("REAL_TOPIC", b"orders")],
        [("TIMER_DELAY_SEC", b"9" * 400), ("REAL_TOPIC", b"orders")],
        [("TIMER_DELAY_SEC", b"1"), ("REAL_TOPIC", b"no such\0topic")],
        [("TIMER_DELAY_SEC", b"1"), ("REAL_TOPIC", b"orders"), ("TIMER_ORIGIN", b"999")],
        [("TIMER_DELAY_SEC", b"1"), ("REAL_TOPIC", b"orders"), ("REAL_QID", b"-7")],
        [("DELAY", b""), ("REAL_TOPIC", b"orders")],
    ]
    batch = read(0, NOW_MS, good, *bad, good)
    assert batch.rejected.tolist() == [False, *[True] * len(bad), False]
    world.take(batch)
    world.pass_time(1_000)
    left = world.publisher.left_ms
    assert len(left) == 2 + len(bad)
    assert [left[f"timers-0@{n}"] - NOW_MS for n in (0, len(bad) + 1)] == [1_000, 1_000]


def test_a_delivered_message_that_is_sent_again_with_a_new_delay_waits(world: DefectWorld) -> None:
    """K. A mark that stays on delivered messages says that they are timed already."""
    world.take(read(0, NOW_MS, [("mine", b"1"), ("DELAY", b"1"), ("REAL_TOPIC", b"orders")]))
    world.pass_time(1_000)
    (deliveries,) = world.publisher.deliveries()
    found = delivered_headers(deliveries, 0)
    assert [name for name, _ in found] == ["mine", "TIMER_SOURCE", "TIMER_DUE_MS", "UNIQ_KEY"]
    again = read(1, NOW_MS + 1_000, [*found, ("TIMER_DELAY_SEC", b"30"), ("REAL_TOPIC", b"bills")])
    assert not again.rejected[0]
    assert (again.due_ms[0], again.level[0]) == (NOW_MS + 31_000, 0)
    assert (again.origin_offset[0], again.roll_times[0], again.header_count[0]) == (1, 0, 1)
    world.take(again)
    world.pass_time(31_000, 500)
    assert world.late_ms("timers-0@1", 31_000) == 0


def test_thousands_in_one_slot_leave_in_the_order_written(tmp_path: Path) -> None:
    """N. Several threads share a slot of a hundred or more, and put as each is ready."""
    world = DefectWorld(tmp_path, chunk_records=700)
    sources = [source for _ in range(10) for source in world.put(*[1_000] * 500)]
    world.clock.sleep(1)
    world.drain()
    assert list(world.publisher.left_ms) == sources
    world.kill()


def test_a_shard_that_was_down_for_longer_than_a_week_delivers_everything(
    world: DefectWorld,
) -> None:
    """O. Slots older than the wheel are abandoned at the start."""
    sources = world.put(1_000, 60_000, 3_000_000)
    world.drain()
    down_ms = 8 * 24 * HOUR_MS
    world.clock.sleep(down_ms / 1000)
    world.restart()
    world.drain()
    assert list(world.publisher.left_ms) == sources
    world.pass_time(10_000, 1_000)  # the progress is told, and makes room in the ring
    overdue, coming = world.put(down_ms - 5, down_ms + 60_000)
    world.pass_time(50_000, 1_000)
    assert (world.late_ms(overdue, down_ms), world.late_ms(coming, down_ms)) == (11_000, 60_000)


def test_a_damaged_end_of_a_log_does_not_keep_its_hour(world: DefectWorld) -> None:
    """P. The cleaner looks at a file's last record, and stops for ever at one that is not valid."""
    world.put(1_000)
    world.pass_time(1_000)
    (path,) = (world.path / "timerlog").iterdir()
    with path.open("r+b") as file:
        file.seek(-RECORD_BYTES, 2)
        file.write(b"\xff" * RECORD_BYTES)
    checkpoints = DurableCheckpoints(world.path)
    for _ in range(3):
        world.put(int(world.clock.now_ms() - NOW_MS + HOUR_MS))
        checkpoints.write()
        world.pass_time(HOUR_MS + 120_000, 60_000)
    assert not path.exists()
    assert not (world.path / "messages" / path.name).exists()
    checkpoints.close()


# ---- the documents ------------------------------------------------------------------------------

INTERNALS, USERS = ROOT / "docs" / "rip43.md", ROOT / "docs" / "from-rocketmq.md"


def lines_of_tables(page: Path) -> list[list[str]]:
    """Cells of every line of every table, heads too; rules left out."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [
        [cell.strip() for cell in row] for row in cells if set("".join(row).strip()) - set(":- ")
    ]


@pytest.mark.parametrize(
    ("page", "least"), [(INTERNALS, 60), (USERS, 45)], ids=["internals", "users"]
)
def test_no_row_of_a_document_is_empty(page: Path, least: int) -> None:
    found = lines_of_tables(page)
    assert len(found) > least
    assert [row for row in found if not all(row)] == []


def test_every_defect_has_a_test_that_exists() -> None:
    found = lines_of_tables(INTERNALS)
    defects = {row[0]: row[-1] for row in found if re.fullmatch(r"[A-Z]", row[0])}
    assert list(defects) == [*"ABCDEFGHIJKLMNOPQRSTUVWX"]
    for name, cell in defects.items():
        named = re.findall(r"`(\w+(?:/\w+)+\.py)::(\w+)`", cell)
        assert named, name
        for path, test in named:
            source = (ROOT / "tests" / path).read_text()
            assert f"def {test}(" in source, f"{name}: {path}::{test}"


def test_every_property_and_setting_of_the_original_is_mapped() -> None:
    """Those that its users set, as of 5.5."""
    text = USERS.read_text()
    properties = "DELAY TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS TIMER_DEL_UNIQKEY REAL_QID"
    properties += " UNIQ_KEY TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS"
    settings = "timerPrecisionMs timerMaxDelaySec timerRollWindowSlot messageDelayLevel"
    settings += (
        " timerWheelEnable timerInterceptDelayLevel timerCongestNumEachSlot timerStopEnqueue"
    )
    settings += " timerStopDequeue timerFlushIntervalMs timerWarmEnable timerRocksDBEnable"
    settings += " timerEnableRetryUntilSuccess timerSkipUnknownError fileReservedTime"
    for name in f"{properties} {settings}".split():
        assert f"`{name}`" in text, name


@pytest.mark.parametrize("page", [INTERNALS, USERS], ids=["internals", "users"])
def test_what_a_document_names_is_there(page: Path) -> None:
    """Settings, metrics and commands of duewheel."""
    text = page.read_text()
    sections = {name: field.annotation for name, field in Settings.model_fields.items()}
    for section, key in re.findall(r"`(app|timer|ingest|dequeue|storage|shard)\.(\w+)", text):
        model = sections[section]
        assert isinstance(model, type) and issubclass(model, BaseModel)
        assert key in {*model.model_fields, "behind_ms", "lag"}, f"{section}.{key}"
    package = ROOT / "src" / "duewheel"
    named = [*package.rglob("*metrics.py"), *(package / "api").glob("*.py")]
    shell = "".join(path.read_text() for path in named)
    for name in re.findall(r"`duewheel_(\w+?)(?:_total)?`", text):
        assert f'"{name}"' in shell, name
    for name in re.findall(r"`duewheel (\w+)", text):
        assert name in cli.commands, name
