"""Metrics of a shard without Kafka and Spark, scraped over HTTP."""

from __future__ import annotations

import socket
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.timer_rows import P0, TIMER_TOPIC, TimerRow, timer_batch

from duewheel.audit.history import AuditHistory
from duewheel.checkpoints.progress_mirror import Mirror
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.osutil.metrics_server import TOPIC_SERIES_MAX, TopicLabels, served
from duewheel.runtime.dequeue_metrics import DequeueMetrics
from duewheel.runtime.ingest_metrics import IngestMetrics
from duewheel.streaming.batch_taker import TakerStatistics
from duewheel.wheel.dequeue.duration_histogram import Histogram
from duewheel.wheel.slots import HOUR_MS, WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory

WHEEL = WheelConfig(50, 100_000, window_ms=3_600_000, margin_ms=0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scrape(port: int) -> dict[str, float]:
    """All duewheel_ samples by name and, if it has one, the value of its label."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    return {
        ":".join([sample.name.removeprefix("duewheel_"), *sample.labels.values()]): sample.value
        for sample in samples
        if sample.name.startswith("duewheel_")
    }


def test_a_scrape_shows_deliveries_lateness_and_what_is_pending(tmp_path: Path) -> None:
    world = LocalWorld(tmp_path, WHEEL, starts={P0: 0})
    due_ms = [100, 100, 900, 30_000, 30_000, 2_000_000]
    world.put(*due_ms)
    world.append(TimerRow(0, 6, 0, rejected=True), TimerRow(0, 7, NOW_MS + 100, level=3))
    world.clock.set(NOW_MS + 1_000)
    assert world.tick()
    world.state.live.note_deliveries(4, 1, wait=True)
    beside, port = DataDirectory(tmp_path, WHEEL), free_port()
    spans = {"exported": 2, "failed": 0, "dropped": 1}
    source = DequeueMetrics(beside, world.clock, lambda: world.dequeue.statistics, lambda: spans)
    with served(source, "127.0.0.1", port, "metrics.dequeue_port"):
        seen = scrape(port)
    assert (seen["spans_total:exported"], seen["spans_total:dropped"]) == (2, 1)
    assert (seen["delivered_total"], seen["transactions_total"]) == (4, 2)
    assert seen["delivered_by_level_total:3"] == 1
    assert seen[f"dead_letters_total:rejected:{TIMER_TOPIC}"] == 1
    assert seen["dead_letters_wait"] == 1
    assert seen[f"delivery_lateness_seconds_bucket:0.1:{TIMER_TOPIC}"] == 1
    assert seen[f"delivery_lateness_seconds_bucket:1:{TIMER_TOPIC}"] == 4
    assert seen[f"delivery_lateness_seconds_count:{TIMER_TOPIC}"] == 4
    assert seen[f"delivery_lateness_seconds_sum:{TIMER_TOPIC}"] == pytest.approx(2.8)
    assert seen["commit_duration_seconds_count"] == 2
    assert (seen["pending"], seen["slot_max_size"]) == (3, 2)
    # By the offset's parity: 3 and 5 are bills, 4 is an order.
    assert (seen["pending_by_topic:bills"], seen["pending_by_topic:orders"]) == (2, 1)
    assert (seen["pending_due_within:10"], seen["pending_due_within:60"]) == (0, 2)
    assert seen["pending_due_within:+Inf"] == 3
    assert (seen["floor_timestamp_seconds"], seen["dequeue_paused"]) == (NOW_MS / 1000 + 1, 0)
    with pytest.raises(OSError, match="refused"):
        scrape(port)
    beside.close()
    world.kill()


def test_a_scrape_shows_deliveries_by_objective(tmp_path: Path) -> None:
    """Those in time and late ones; of the configured topics alone, from 0 on."""
    limits_ms = {"timers": 500, "silent": 1_000}
    world = LocalWorld(tmp_path, WHEEL, starts={P0: 0}, lateness_p99_ms=limits_ms)
    beside, port = DataDirectory(tmp_path, WHEEL), free_port()
    source = DequeueMetrics(beside, world.clock, lambda: world.dequeue.statistics)
    world.put(100, 100, 900)
    world.append(TimerRow(0, 6, 0, rejected=True))
    with served(source, "127.0.0.1", port, "metrics.dequeue_port"):
        before = scrape(port)
        world.clock.set(NOW_MS + 1_000)
        assert world.tick()
        after = scrape(port)
    names = [f"objective_{what}_total:timers" for what in ("deliveries", "late")]
    assert [[seen[name] for name in names] for seen in (before, after)] == [[0, 0], [3, 2]]
    assert after["objective_deliveries_total:silent"] == after["objective_late_total:silent"] == 0
    beside.close()
    world.kill()


def families(source: DequeueMetrics) -> dict[str, list[dict[str, str]]]:
    """The labels of every sample, by family."""
    return {f.name: [sample.labels for sample in f.samples] for f in source.families()}


def test_a_shard_without_a_key_is_reported(tmp_path: Path) -> None:
    """An older version began it; later a key is drawn, as by `reconfigure --rotate-key`."""
    world = LocalWorld(tmp_path, WHEEL, starts={P0: 0})
    beside = DataDirectory(tmp_path, WHEEL)
    source = DequeueMetrics(beside, world.clock, lambda: world.dequeue.statistics)
    assert value_of(source, "copies_unsigned") == 1
    before = beside.state.mirror()
    assert before is not None
    drawn = before.progress.epochs.drawing_key(lambda _: 1)
    world.state.write_mirror(Mirror.of(replace(before.progress, epochs=drawn), 0))
    assert value_of(source, "copies_unsigned") == 0
    beside.close()
    world.kill()


def value_of(source: DequeueMetrics, name: str) -> float:
    (found,) = (family for family in source.families() if family.name == f"duewheel_{name}")
    (sample,) = found.samples
    return sample.value


def test_producers_cannot_make_series_at_will(tmp_path: Path) -> None:
    """5,000 names of topics: 200 with the most timers have their own."""
    world = LocalWorld(tmp_path, WHEEL, starts={P0: 0})
    batch = timer_batch([TimerRow(0, offset, NOW_MS + 100_000) for offset in range(5_010)])
    names = [*(f"no.such-{number}" for number in range(5_000)), "busy"]
    target = np.minimum(np.arange(5_010), 5_000).astype(np.int32)
    world.engine.append(replace(batch, targets=names, target=target), {P0: 5_010})
    beside = DataDirectory(tmp_path, WHEEL)
    source = DequeueMetrics(beside, world.clock, lambda: world.dequeue.statistics)
    first, again = families(source), families(source)
    assert first == again
    topics = [labels["topic"] for labels in first["duewheel_pending_by_topic"]]
    assert len(topics) == TOPIC_SERIES_MAX + 1
    assert {"busy", "other"} <= set(topics)

    # A target with more timers than those names takes the place of one of them, in a later hour.
    batch = timer_batch([TimerRow(0, n, NOW_MS + HOUR_MS - 1) for n in range(5_010, 5_030)])
    target = np.zeros(20, np.int32)
    world.engine.append(replace(batch, targets=["later"], target=target), {P0: 5_030})
    pending = families(source)["duewheel_pending_by_topic"]
    assert "later" in {labels["topic"] for labels in pending}
    beside.close()
    world.kill()


def test_a_topic_keeps_its_series_for_as_long_as_it_has_timers() -> None:
    labels = TopicLabels()
    many = {f"t{number}": 1.0 for number in range(TOPIC_SERIES_MAX)}
    assert labels.of(many) == many
    found = labels.of({**many, "late": 900.0, "later": 5.0})
    assert found == {**many, "other": 905.0}, "a counter never moves"
    del many["t0"]
    found = labels.of({**many, "late": 900.0, "later": 5.0})
    assert found == {**many, "late": 900.0, "other": 5.0}
    assert labels.of({"other": 3.0, "t1": 1.0}) == {"other": 3.0, "t1": 1.0}


def test_a_topic_keeps_its_series_of_all_reasons() -> None:
    labels = TopicLabels()
    many = {f"t{number}": {"a": 1, "b": 2} for number in range(TOPIC_SERIES_MAX)}
    found = labels.with_reasons(many)
    assert len(found) == 2 * TOPIC_SERIES_MAX and found["t0", "b"] == 2
    found = labels.with_reasons(
        {**many, "late": {"a": 900, "c": 1}, "other": {"a": 5}, "t0": {"a": 1, "c": 4}}
    )
    assert (found["t0", "c"], found["other", "a"], found["other", "c"]) == (4, 905, 1)
    assert ("late", "a") not in found


def test_a_scrape_shows_what_ingest_refused_by_timer_topic(tmp_path: Path) -> None:
    world = LocalWorld(tmp_path, WHEEL, starts={P0: 0})
    taken = TakerStatistics(
        rows=10,
        rejected={"a": {"past_due": 3}, "b": {"bad_header": 1}},
        forged={"b": 2},
        rows_lost={"a": 7},
    )
    settings = Settings.model_validate({"timer": {"topics": [TIMER_TOPIC]}})
    audits = AuditHistory(tmp_path / "audits")
    cut = [("a", 0), ("a", 3), ("b", 1)]
    beside, port = DataDirectory(tmp_path, WHEEL), free_port()
    source = IngestMetrics(beside.state, world.clock, lambda: taken, settings, audits, cut)
    with served(source, "127.0.0.1", port, "metrics.ingest_port"):
        seen = scrape(port)
    assert seen["timers_accepted_total"] == 10 - 4
    assert (seen["rejected_total:past_due:a"], seen["rejected_total:bad_header:b"]) == (3, 1)
    assert (seen["forged_copies_total:b"], seen["rows_lost_total:a"]) == (2, 7)
    assert (seen["recovery_cut_partitions:a"], seen["recovery_cut_partitions:b"]) == (2, 1)
    beside.close()
    world.kill()


def test_only_histograms_have_bounds_for_labels(tmp_path: Path) -> None:
    """`le` has a meaning to Prometheus, which a gauge does not give it."""
    world = LocalWorld(tmp_path, WHEEL, starts={P0: 0})
    beside = DataDirectory(tmp_path, WHEEL)
    source = DequeueMetrics(beside, world.clock, lambda: world.dequeue.statistics)
    found = list(source.families())
    assert len(found) > 20
    for family in found:
        if family.type != "histogram":
            assert all("le" not in sample.labels for sample in family.samples), family.name
    beside.close()
    world.kill()


class NoMetrics:
    def families(self) -> list[Metric]:
        return []


def test_a_port_in_use_is_refused_with_the_setting_and_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"^metrics.dequeue_port: .*127.0.0.1:{port}: Address"),
            served(NoMetrics(), "127.0.0.1", port, "metrics.dequeue_port"),
        ):
            pass


def test_a_due_time_of_any_producer_keeps_the_sum_rising() -> None:
    values = np.array([10**18] * 10 + [1])
    once = Histogram().with_values(values)
    assert once.total > 10 * Histogram().bounds[-1]
    assert once.with_values(values).total == 2 * once.total


def test_a_value_belongs_to_the_first_bound_that_it_does_not_exceed() -> None:
    known = Histogram(bounds=(10, 20), counts=(0, 0, 0))
    known = known.with_values(np.array([-5, 10, 11, 20, 21])).with_values(np.array([0, 1_000]))
    assert known == Histogram((10, 20), (3, 2, 2), 1_062)
    assert known.with_values(np.array([], np.int64)) == known
