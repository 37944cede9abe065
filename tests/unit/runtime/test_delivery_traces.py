"""Spans of deliveries: of which rows, their content, and how many at most."""

from __future__ import annotations

import importlib.util
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from kafka.record import MemoryRecords
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from tests.harness.config_file import small_settings
from tests.harness.deliveries import NOW_MS, rows

from duewheel.errors import ConfigError
from duewheel.runtime.delivery_traces import QUEUE_MAX, SPANS_MAX, DeliveryTraces
from duewheel.runtime.dequeue_process import _traces
from duewheel.runtime.supervisor import run
from duewheel.schemas.batches import NO_PARTITION, Deliveries
from duewheel.schemas.columns import binary
from duewheel.schemas.wire.record_batch import seal
from duewheel.schemas.wire.single_record import Header, header
from duewheel.wheel.dequeue.encoder import encode
from duewheel.wheel.dequeue.requeue import rolled_copies
from duewheel.wheel.encoded import Encoded
from duewheel.wheel.target_rules import Reason, Target

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
STATE: Header = ("tracestate", b"vendor=1")
ROOM = Target(4, 1 << 20, batch_bytes=1 << 20)
GONE = Target(0, 0, refusal=Reason.UNKNOWN_TARGET_TOPIC, batch_bytes=0)


def context(span_id: int, flags: bytes = b"01") -> bytes:
    return b"00-%032x-%016x-%b" % (TRACE_ID, span_id, flags)


def sent(*flags: bytes | None, topics: Sequence[str] | None = None) -> Deliveries:
    """A row for each; the producer's span has the row's number, from 1 on; None: no context."""
    headers = [
        b"" if each is None else header("traceparent", context(number, each)) + header(*STATE)
        for number, each in enumerate(flags, 1)
    ]
    plain = rows(topics or ["a"] * len(flags), [2] * len(flags))
    counts = np.array([0 if each is None else 2 for each in flags], np.int32)
    due_ms = np.full(len(flags), NOW_MS - 40)
    return replace(plain, headers=binary(headers), header_count=counts, due_ms=due_ms)


def encoded(deliveries: Deliveries, traces: DeliveryTraces) -> Encoded:
    def lookup(topics: Sequence[str]) -> Mapping[str, Target]:
        return {topic: GONE if topic == "gone" else ROOM for topic in topics}

    chance = random.Random(0)
    return encode(deliveries, lookup, frozenset(), "dead", chance, NOW_MS, observer=traces)


def commit(found: Encoded, now_ms: int = NOW_MS) -> None:
    assert found.on_commit is not None
    found.on_commit(now_ms)


def headers_of(found: Encoded) -> list[dict[str, bytes]]:
    """Of each record, as Kafka's client decodes it."""
    return [
        dict(record.headers)
        for part in found.parts
        for record in MemoryRecords(
            bytes(seal(part.batch.body, part.batch.count, timestamp_ms=9))
        ).next_batch()
    ]


class Kept(InMemorySpanExporter):
    """A collector in memory; it waits while `may_go` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()
        self.may_go.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.may_go.wait(60)
        return super().export(spans)


@pytest.fixture
def collector() -> Kept:
    return Kept()


@pytest.fixture
def traces(collector: Kept) -> Iterator[DeliveryTraces]:
    made = DeliveryTraces(collector, "shop", "producer")
    yield made
    collector.may_go.set()
    made.close()


def test_a_span_has_what_the_conventions_name(collector: Kept, traces: DeliveryTraces) -> None:
    found = encoded(sent(b"01"), traces)
    traces._provider.force_flush()  # noqa: SLF001
    assert not collector.get_finished_spans(), "it ends with the transaction"
    commit(found)
    traces.close()
    (span,) = collector.get_finished_spans()
    assert (span.name, span.kind, span.parent) == ("send a", SpanKind.CLIENT, None)
    assert span.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "a",
        "messaging.destination.partition.id": "2",
        "messaging.message.id": "timers-0@0",
        "duewheel.timer_topic": "timers",
        "duewheel.lateness_ms": 40,
    }
    (link,) = span.links
    assert (link.context.trace_id, link.context.span_id) == (TRACE_ID, 1)
    assert link.context.is_remote
    assert span.context is not None and span.context.trace_id != TRACE_ID
    assert span.resource.attributes["service.name"] == "shop"
    assert traces.outcomes == {"exported": 1, "failed": 0, "dropped": 0}
    (headers,) = headers_of(found)
    assert (headers["traceparent"], headers["tracestate"]) == (context(1), b"vendor=1")


def test_each_sampled_delivery_has_one_and_nothing_else_has(
    collector: Kept, traces: DeliveryTraces
) -> None:
    """Not those without a context, copies, dead letters and replies."""
    topics = ["b", "a", "gone", "a", "b", "a", "a"]
    given = sent(b"01", b"00", b"01", None, b"01", b"01", b"01", topics=topics)
    given = replace(
        given,
        answer=np.arange(7) == 5,
        key_hash=np.array([6, 0, 0, 0, 3, 0, 0], np.int32),
        target_partition=np.full(7, NO_PARTITION, np.int32),
    )
    commit(encoded(rolled_copies(given, np.arange(7) == 6), traces))
    traces.close()
    spans = collector.get_finished_spans()
    found = {span.links[0].context.span_id: span.attributes or {} for span in spans}
    places = {
        number: (each["messaging.destination.name"], each["messaging.destination.partition.id"])
        for number, each in found.items()
    }
    assert places == {1: ("b", "2"), 5: ("b", "3")}
    assert len(spans) == 2


def test_the_delivery_s_span_takes_the_place_of_the_producer_s(collector: Kept) -> None:
    traces = DeliveryTraces(collector, "shop", "delivery")
    found = encoded(sent(b"01", b"00", None, b"03"), traces)
    commit(found)
    traces.close()
    spans = {span.links[0].context.span_id: span for span in collector.get_finished_spans()}
    assert spans.keys() == {1, 4}
    assert {span.kind for span in spans.values()} == {SpanKind.PRODUCER}
    first, second, third, fourth = headers_of(found)
    for number, headers in ((1, first), (4, fourth)):
        own = spans[number].context
        assert own is not None
        expected = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
        assert headers["traceparent"] == expected.encode()
        assert "tracestate" not in headers
        assert headers["TIMER_DUE_MS"] == b"%d" % (NOW_MS - 40)
    assert (second["traceparent"], second["tracestate"]) == (context(2, b"00"), b"vendor=1")
    assert "traceparent" not in third


def test_with_a_tracer_that_is_off_the_producer_s_span_stays(
    collector: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    traces = DeliveryTraces(collector, "shop", "delivery")
    (headers,) = headers_of(encoded(sent(b"01"), traces))
    traces.close()
    assert headers["traceparent"] == context(1)


def test_one_writer_of_many_leaves_the_others_their_spans(
    collector: Kept, traces: DeliveryTraces
) -> None:
    count = SPANS_MAX + 100
    topic = np.where(np.arange(count) < count - 3, 0, 1).astype(np.int32)
    given = replace(
        sent(*[b"01"] * count),
        source_partitions=[("many", 0), ("few", 0)],
        source_partition=topic,
    )
    encoded(given, traces)  # not committed: not counted
    commit(encoded(given, traces))
    traces.close()
    found = [
        (span.attributes or {})["duewheel.timer_topic"] for span in collector.get_finished_spans()
    ]
    assert (found.count("few"), len(found)) == (3, SPANS_MAX)
    assert traces.outcomes == {"exported": SPANS_MAX, "failed": 0, "dropped": 100}


def test_a_collector_that_hangs_costs_spans_and_no_delivery(
    collector: Kept, traces: DeliveryTraces
) -> None:
    collector.may_go.clear()
    rounds = QUEUE_MAX // SPANS_MAX + 3
    for _ in range(rounds):
        commit(encoded(sent(*[b"01"] * SPANS_MAX), traces))
    assert traces.outcomes == {"exported": 0, "failed": 0, "dropped": 3 * SPANS_MAX}
    collector.may_go.set()
    traces.close()
    assert traces.outcomes["exported"] == QUEUE_MAX


def test_what_the_collector_refuses_is_counted() -> None:
    class Refusing(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.FAILURE

    traces = DeliveryTraces(Refusing(), "shop", "producer")
    commit(encoded(sent(b"01", b"01"), traces))
    traces.close()
    assert traces.outcomes == {"exported": 0, "failed": 2, "dropped": 0}


def test_without_the_extra_the_setting_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(tmp_path)
    assert _traces(settings) is None
    on = settings.traces.model_copy(update={"enabled": True})
    settings = settings.model_copy(update={"traces": on})
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", str(1 << 20))
    with pytest.raises(ConfigError, match="a variable OTEL_… cannot be used: max_export_batch"):
        _traces(settings)
    find = importlib.util.find_spec
    missing = "opentelemetry.sdk"
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )
    for refuses in (_traces, partial(run, flags=[])):
        with pytest.raises(ConfigError, match=r"pip install 'duewheel\[otel\]'"):
            refuses(settings)
