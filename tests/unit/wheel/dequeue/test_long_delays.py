"""Delays beyond the roll window: their limit, their rolls, and the cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.source_table import SourceRow, as_table, read_records
from tests.harness.timer_rows import P0, TIMER_TOPIC, TimerRow, suite_parameters, timer_batch
from tests.simulation.years import DAY_MS, traffic

from duewheel.checkpoints.process_role import Role
from duewheel.config.settings import load
from duewheel.errors import ConfigError
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.request_columns import COUNT_MAX
from duewheel.wheel.roll_rule import roll_instants
from duewheel.wheel.slots import WheelConfig

TEN_YEARS_MS = 3_650 * DAY_MS
RULES = compile_suite(load_suite(), suite_parameters(max_delay_ms=TEN_YEARS_MS))


def asked_for(*delays_ms: int, header: str = "TIMER_DELAY_MS") -> TimerBatch:
    base = 0 if header == "TIMER_DELAY_MS" else NOW_MS
    records = [
        SourceRow(offset, NOW_MS, [(header, b"%d" % (base + ms)), ("REAL_TOPIC", b"orders")])
        for offset, ms in enumerate(delays_ms)
    ]
    return parse(read_records(as_table(records)), Contract((1_000,), {}, "dead", RULES))


@pytest.mark.parametrize("header", ["TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_ten_years_from_the_timestamp_and_not_a_millisecond_more(header: str) -> None:
    batch = asked_for(TEN_YEARS_MS, TEN_YEARS_MS + 1, 10**18, header=header)
    assert batch.rejected.tolist() == [False, True, True]
    assert batch.due_ms[0] == NOW_MS + TEN_YEARS_MS


def test_the_dead_letter_names_the_limit_and_what_was_asked_for() -> None:
    batch = asked_for(TEN_YEARS_MS, TEN_YEARS_MS + 1, 10**14)
    texts = [(headers or b"").decode("latin-1") for headers in batch.headers.to_pylist()]
    assert "TIMER_ERROR" not in texts[0]
    for text, asked_ms in zip(texts[1:], (TEN_YEARS_MS + 1, 10**14), strict=True):
        assert "delay_too_long" in text
        assert f"due {asked_ms} ms after the record's timestamp, " in text
        assert text.endswith(f"timer.max_delay allows {TEN_YEARS_MS} ms")
    assert batch.header_count.tolist() == [0, 4, 4]
    assert batch.rejections() == {"delay_too_long": 2}


@pytest.mark.parametrize(
    ("reason", "column", "complaint"),
    [
        ("{value}", "target_topic", "of a column of numbers"),
        ("{value} {value}", "delay_ms", "once"),
        ("{max_dealy_ms}", "delay_ms", "no value for 'max_dealy_ms'"),
    ],
)
def test_a_reason_that_cannot_be_told_is_refused_at_start(
    reason: str, column: str, complaint: str
) -> None:
    rule = {
        "type": "expect_column_values_to_be_null",
        "kwargs": {"column": column},
        "meta": {"code": "x", "reason": reason},
    }
    with pytest.raises(ConfigError, match=complaint):
        compile_suite({"name": "s", "expectations": [rule]}, {})


def test_the_maximum_can_be_ten_years_and_has_a_bound_of_its_own() -> None:
    def with_maximum(text: str) -> None:
        load(None, {"timer": {"topics": "timers", "max_delay": text}})

    with_maximum("3650d")
    with_maximum("36525d")
    with pytest.raises(ConfigError, match=r"timer\.max_delay"):
        with_maximum("36526d")


def test_rolls_are_as_few_as_the_window_allows() -> None:
    """At most one in 7/8 of a window and one more; a century's fit TIMER_ROLL_TIMES."""
    rng, count = np.random.default_rng(1), 500
    due_ms = NOW_MS + rng.integers(DAY_MS, TEN_YEARS_MS, count, endpoint=True)
    due_ms[:2] = NOW_MS + TEN_YEARS_MS
    id_hash, stamp_ms = rng.integers(0, 2**40, count), np.full(count, NOW_MS)
    rolls = np.zeros(count, np.int64)
    while (waiting := due_ms - stamp_ms > DAY_MS).any():
        stamp_ms = np.where(waiting, roll_instants(due_ms, stamp_ms, id_hash, DAY_MS), stamp_ms)
        rolls += waiting
    assert (stamp_ms < due_ms).all()
    shortest_ms = DAY_MS - DAY_MS // 8
    assert (rolls <= (due_ms - NOW_MS) // shortest_ms + 1).all()
    assert rolls[0] >= 3_649
    assert 36_525 * DAY_MS // shortest_ms + 1 < COUNT_MAX


def test_timers_of_one_second_do_not_roll_in_one_second() -> None:
    """The busiest minute of the first day has an eighth of a window for itself, later ones more."""
    found = traffic(20_000, 40 * DAY_MS)
    per_minute = 20_000 * 8 / (24 * 60)
    assert found["day 1"]["busiest minute"] < 1.5 * per_minute
    assert found["day 2"]["to the mean"] < 6
    assert found["day 10"]["to the mean"] < 3 > found["day 39"]["to the mean"]


def test_a_transaction_rolls_and_delivers(tmp_path: Path) -> None:
    wheel = WheelConfig(1_000, 4_000, window_ms=3_600_000, margin_ms=0)
    world = LocalWorld(tmp_path, wheel, starts={P0: 0}, chunk_records=10)
    timers = [
        TimerRow(0, n, NOW_MS + (TEN_YEARS_MS if n % 3 else 3_000_000 + n * 1_000))
        for n in range(60)
    ]
    batch = timer_batch(timers)
    world.engine.append(
        replace(batch, timestamp_ms=np.full(60, NOW_MS), roll_times=np.full(60, 3_649, np.int32)),
        {P0: 60},
    )
    world.clock.sleep(3_600)
    for _ in range(3):
        assert world.tick()
    world.restart(Role.DEQUEUE)
    world.drain()
    sent = [deliveries for deliveries, _ in world.publisher.committed if deliveries is not None]
    assert sorted(world.sources()) == sorted(timer.source for timer in timers)
    assert sum(int(deliveries.is_copy.sum()) for deliveries in sent) == 40
    assert all((d.roll_times[d.is_copy] == 3_649).all() for d in sent)  # the copy says one more
    assert all(b"3650" in headers.as_py() for d in sent for headers in d.headers.filter(d.is_copy))
    assert world.dequeue.statistics.rolled.keys() == {TIMER_TOPIC}
    world.kill()
