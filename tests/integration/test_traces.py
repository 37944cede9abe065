"""Spans of deliveries on a real broker, exported to a server that takes OTLP, over kills."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.harness.config_file import write_config
from tests.harness.launcher import events, launch, tail, wait_until
from tests.harness.reader import read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard

from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.shard.status import read_status
from duewheel.schemas.wire.single_record import Header

pytestmark = pytest.mark.kafka

COUNT = 900
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


class Collector:
    """Takes spans as a collector does: protobuf over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportTraceServiceRequest.FromString(body)
                assert self.path == "/v1/traces"
                for resource in request.resource_spans:
                    names = {
                        each.key: each.value.string_value for each in resource.resource.attributes
                    }
                    assert names["service.name"] == "traced"
                    for scope in resource.scope_spans:
                        collector.spans += scope.spans
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def by_id(self) -> dict[str, Any]:
        """The spans by the ids of their timers; each has one at most."""
        found = {attributes(span)["messaging.message.id"].string_value: span for span in self.spans}
        assert len(found) == len(self.spans)
        return found


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: each.value for each in span.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with closing(Collector()) as running:
        yield running


def message(number: int, target: str) -> tuple[bytes, bytes, list[Header]]:
    """Each third one has no context that is sampled."""
    context = f"00-{TRACE_ID}-{number + 1:016x}-{'01' if number % 3 else '00'}"
    headers: list[Header] = [
        *(("REAL_TOPIC", target.encode()), ("TIMER_DELAY_MS", b"0")),
        ("traceparent", context.encode()),
    ]
    return b"%d" % number, b"value", headers


def test_over_kills_of_dequeue_each_delivery_has_one_span_at_most(
    broker: SharedBroker, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill loses the spans that wait for their export; after a signal none is lost."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    sections: dict[str, dict[str, Any]] = {
        "dequeue": {"chunk_records": 10},
        "traces": {"enabled": True, "parent": "delivery"},
    }
    config = write_config(tmp_path, broker.bootstrap_servers, "traced", **sections)
    settings = load(config)
    log, target = config.with_name("dequeue.log"), "traced.orders"
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings, partitions=2)
    with closing(SparklessShard(settings, 1)) as shard:
        shard.send(shard.timers, 0, *(message(number, target) for number in range(COUNT)))

        def are_taken() -> bool:
            shard.take()
            return sum(shard.engine.marks.values()) >= COUNT

        wait_until(are_taken, "the messages cannot be read")

    for goal, last in ((100, signal.SIGKILL), (400, signal.SIGKILL), (COUNT, signal.SIGTERM)):
        process = launch(config, "dequeue")
        wait_until(
            lambda: read_status(settings, SystemClock()).delivered >= goal,  # noqa: B023 - called at once
            lambda: tail(log),
            every_s=0.005,
        )
        assert process.end(last, 30)

    messages = {
        dict(each.headers)["TIMER_SOURCE"].decode(): each
        for each in read_topic(broker.bootstrap_servers, target)
    }
    assert len(messages) == COUNT
    spans = collector.by_id()
    for source, span in spans.items():
        headers, number = dict(messages[source].headers), int(messages[source].key)
        own = f"00-{span.trace_id.hex()}-{span.span_id.hex()}-".encode()
        assert headers["traceparent"].startswith(own)
        assert [(each.trace_id.hex(), int(each.span_id.hex(), 16)) for each in span.links] == [
            (TRACE_ID, number + 1)
        ]
        found = attributes(span)
        partition = found["messaging.destination.partition.id"].string_value
        assert (span.name, int(partition)) == (f"send {target}", messages[source].partition)
        assert found["duewheel.lateness_ms"].int_value >= 0
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    # In their order, as they are of one partition and one slot after the other.
    in_order = [f"traced.timers-0@{number}" for number in range(COUNT)]
    (stopped,) = events(log, "dequeue stopped")
    at_the_end = in_order[COUNT - stopped["delivered"] :]
    assert len(at_the_end) > 10
    assert {s for s in at_the_end if int(messages[s].key) % 3} <= spans.keys()
    sampled = {source for source, each in messages.items() if int(each.key) % 3}
    assert spans.keys() <= sampled
    for source in messages.keys() - sampled:
        assert dict(messages[source].headers)["traceparent"].endswith(b"-00")
