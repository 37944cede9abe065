"""A span of OpenTelemetry for each delivery of a sampled trace (docs/receipts.md).

- A span begins when its message is encoded, and ends once the transaction is committed. One that
  does not end is never exported: of messages that are encoded again, or left in no transaction.
- A transaction has SPANS_MAX at most, equally many of each timer topic. While QUEUE_MAX spans wait
  for their export, it has none. Deliveries without a span for such a reason are counted.
- A span is the root of a trace, linked to the producer's span: between the two there may be days.

The only module that imports OpenTelemetry.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, TraceFlags

from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.schemas.arrays import Int64, rank_among_equals
from duewheel.schemas.batches import Deliveries, topic_numbers
from duewheel.schemas.columns import binary, choose, scatter
from duewheel.schemas.wire.trace_context import TraceHeaders, sampled, trace_headers
from duewheel.threads import Worker
from duewheel.wheel.dequeue.partitioner import Group
from duewheel.wheel.dequeue.receipt_rows import delivered
from duewheel.wheel.encoded import Committed

SPANS_MAX = 256  # with their export 24 ms of processor time
QUEUE_MAX = 2_048
_ID_CHARACTERS_MAX = 256
_CLOSE_S = 2.0  # for the export of the last spans: `run` waits 8 s for the end of dequeue


class DeliveryTraces:
    """The Observer that makes the spans; see the module's head."""

    def __init__(
        self, exporter: SpanExporter, service: str, parent: Literal["producer", "delivery"]
    ) -> None:
        """`service`: the name of the service, unless OTEL_SERVICE_NAME has one; `parent`: the
        setting.
        """
        self._exporter = _Counting(exporter)
        self._replaces = parent == "delivery"
        self._ended = self._dropped = 0
        name = os.environ.get("OTEL_SERVICE_NAME") or service
        # The producer's tracer has sampled already: OTEL_TRACES_SAMPLER would sample once more.
        self._provider = TracerProvider(
            ALWAYS_ON, Resource.create({SERVICE_NAME: name}), shutdown_on_exit=False
        )
        # Chunks that are encoded already have begun their spans: they find room nevertheless.
        queue = BatchSpanProcessor(self._exporter, max_queue_size=2 * QUEUE_MAX)
        self._provider.add_span_processor(queue)
        self._tracer = self._provider.get_tracer("duewheel")

    @classmethod
    def to_collector(cls, settings: Settings) -> DeliveryTraces:
        """Exports by OTLP over HTTP, to the collector that the variables OTEL_… name.

        Raises:
            ConfigError: one of them cannot be used.
        """
        try:
            return cls(OTLPSpanExporter(), settings.app.id, settings.traces.parent)
        except ValueError as error:
            raise ConfigError(f"a variable OTEL_… cannot be used: {error}") from error

    def close(self) -> None:
        """Exports the spans that wait, for a moment at most: the collector may be away."""
        last = Worker("traces", self._provider.shutdown)
        last.start()
        last.join(_CLOSE_S)

    @property
    def outcomes(self) -> Mapping[str, int]:
        """The number of spans by outcome. May be read from any thread."""
        counts = self._exporter.counts
        exported, failed = counts[SpanExportResult.SUCCESS], counts[SpanExportResult.FAILURE]
        return {"exported": exported, "failed": failed, "dropped": self._dropped}

    def encoding(
        self, rows: Deliveries, groups: Sequence[Group]
    ) -> tuple[Deliveries, Committed | None]:
        """See Observer."""
        found, at = sampled(rows.headers)
        leaving = delivered(rows)[found]
        found, at = found[leaving], at[leaving]
        if not len(found):
            return rows, None
        _, of_partition = topic_numbers(rows.source_partitions)
        room = QUEUE_MAX - self._ended + sum(self._exporter.counts.values())
        topic = of_partition[rows.source_partition[found]]
        chosen = _equal_shares(topic, min(SPANS_MAX, max(0, room)))
        spans: list[tuple[Span, int]] = []
        changed: dict[int, tuple[bytes, int]] = {}
        for row, start in zip(found[chosen].tolist(), at[chosen].tolist(), strict=True):
            headers = rows.headers[row].as_py() or b""
            of_producer = trace_headers(headers, int(rows.header_count[row]), start)
            if of_producer is None:
                continue
            group = groups[bisect_right(groups, row, key=lambda each: each.first) - 1]
            span = self._begun(rows, row, group, of_producer)
            spans.append((span, int(rows.due_ms[row])))
            own = span.get_span_context()
            if self._replaces and own.is_valid:  # not with OTEL_SDK_DISABLED
                text = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
                changed[row] = of_producer.replaced(text.encode())

        def committed(now_ms: int) -> None:
            self._dropped += len(found) - len(chosen)
            self._ended += len(spans)
            for span, due_ms in spans:
                span.set_attribute("duewheel.lateness_ms", now_ms - due_ms)
                span.end()

        return _with_headers(rows, changed), committed

    def _begun(self, rows: Deliveries, row: int, group: Group, of_producer: TraceHeaders) -> Span:
        """Begins the span of a row. Names are those of the conventions for messaging."""
        timer_id = rows.timer_id[row].as_py() or b""
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": group.topic,
            "messaging.destination.partition.id": str(group.partition),
            "messaging.message.id": timer_id.decode(errors="replace")[:_ID_CHARACTERS_MAX],
            "duewheel.timer_topic": rows.source_partitions[int(rows.source_partition[row])][0],
        }
        ids = of_producer.trace_id, of_producer.span_id
        link = Link(SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)))
        # A producer's only if consumers continue from it.
        kind = SpanKind.PRODUCER if self._replaces else SpanKind.CLIENT
        return self._tracer.start_span(f"send {group.topic}", Context(), kind, attributes, [link])


def _equal_shares(topic: Int64, count: int) -> Int64:
    """At most `count` rows, equally many of each topic that has them; `topic` is each row's."""
    order = np.argsort(topic, kind="stable")
    in_turn = np.argsort(rank_among_equals(topic[order]), kind="stable")
    chosen: Int64 = np.sort(order[in_turn[:count]])
    return chosen


def _with_headers(rows: Deliveries, changed: Mapping[int, tuple[bytes, int]]) -> Deliveries:
    """The deliveries, some rows with other headers: encoded, and their number."""
    if not changed:
        return rows
    numbers, mask = np.array([*changed]), np.zeros(len(rows), np.bool_)
    mask[numbers] = True
    headers = scatter(binary(each for each, _ in changed.values()), numbers, len(rows))
    counts = rows.header_count.copy()
    counts[numbers] = [count for _, count in changed.values()]
    return replace(rows, headers=choose(mask, headers, rows.headers), header_count=counts)


class _Counting(SpanExporter):
    """Counts the spans that have left the queue, by result."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.counts = dict.fromkeys(SpanExportResult, 0)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self.counts[result] += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
