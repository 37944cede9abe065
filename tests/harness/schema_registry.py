"""A schema registry that answers as Confluent's documented API does, on a real socket; and bytes as
the serializers write them.
"""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from duewheel.registry.values import RegistryValues

ORDER_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
ORDER_JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
}
AVRO, JSON, PROTOBUF = 1, 2, 3  # the numbers of an order's schemas


class SchemaRegistry:
    """Its schemas by number, UUID, or subject and version (`a-value/versions/1`): an answer as JSON
    or as it is, or a status alone.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.schemas: dict[str, Mapping[str, Any] | bytes | int] = {}
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []

    def add(self, name: int | str, schema: object, kind: str | None = None, **more: object) -> None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        typed = {} if kind is None else {"schemaType": kind}
        self.schemas[str(name)] = {"schema": text, **typed, **more}

    def answer(self, path: str) -> Mapping[str, Any] | bytes | int:
        base, _, query = path.partition("?")
        of_subject = base.startswith("/subjects/")
        name = base.removeprefix("/subjects/") if of_subject else base.rpartition("/")[2]
        found = self.schemas.get(name, 404)
        # Protobuf is source text, unless it is asked for as a descriptor.
        source = "format=serialized" not in query
        if isinstance(found, Mapping) and found.get("schemaType") == "PROTOBUF" and source:
            return {**found, "schema": 'syntax = "proto3"; // and so on'}
        return found


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked.append(self.path)
            registry.authorizations.append(self.headers["Authorization"])
            found = registry.answer(self.path)
            status = found if isinstance(found, int) else 200
            missing = {"error_code": 40403} if found == 404 else {}
            given = missing if isinstance(found, int) else found
            body = given if isinstance(given, bytes) else json.dumps(given).encode()
            self.send_response(status)
            if status // 100 == 3:
                self.send_header("Location", f"{registry.url}/schemas/ids/1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """To nowhere."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        registry = SchemaRegistry(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield registry
        server.shutdown()


@contextmanager
def orders_registry() -> Iterator[SchemaRegistry]:
    """One with the schema of an order as AVRO, JSON and PROTOBUF."""
    with schema_registry() as server:
        server.add(AVRO, ORDER_AVRO)
        server.add(JSON, ORDER_JSON, "JSON")
        server.add(PROTOBUF, orders_descriptor(), "PROTOBUF")
        yield server


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4) + body


def avro(order: Any, schema: Any = ORDER_AVRO) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), order)
    return stream.getvalue()


def orders_descriptor() -> str:
    """Of the messages Order, with a number and a time, and Order.Line, as the registry gives it."""
    file = FileDescriptorProto(
        name="orders.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    kinds = FieldDescriptorProto
    order = file.message_type.add(name="Order")
    order.field.add(name="number", number=1, type=kinds.TYPE_INT32, label=1)
    at = {"type": kinds.TYPE_MESSAGE, "type_name": ".google.protobuf.Timestamp"}
    order.field.add(name="placed_at", number=2, label=1, **at)
    line = order.nested_type.add(name="Line")
    line.field.add(name="text", number=1, type=kinds.TYPE_STRING, label=1)
    return base64.b64encode(file.SerializeToString()).decode()


def shown(values: RegistryValues, value: bytes, *headers: tuple[str, bytes | None]) -> Any:
    """What a value is decoded to."""
    found = values.decoded("orders", headers, value)
    assert found is not None and found.decoded is not None, found
    return json.loads(found.decoded)


def reason(values: RegistryValues, value: bytes, *headers: tuple[str, bytes | None]) -> str:
    """Why a value is not decoded."""
    found = values.decoded("orders", headers, value)
    assert found is not None and found.not_decoded is not None, found
    assert found.decoded is found.decoded_by is None
    return found.not_decoded
