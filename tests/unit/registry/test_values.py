"""Values decoded by the schemas of a registry: a real process, and a server of the test."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from struct import pack
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.schema_registry import (
    ORDER_AVRO,
    SchemaRegistry,
    avro,
    framed,
    orders_descriptor,
    orders_registry,
    schema_registry,
)

from duewheel.config.keys_and_defaults import RegistrySection
from duewheel.registry import values as in_parent
from duewheel.registry.values import RegistryValues

NAMED = "__value_schema_id"
ORDER = {"number": 7, "note": "soon"}
# A value of it that is deep enough ends fastavro.
TREE = {"type": "record", "name": "T", "fields": [{"name": "t", "type": ["null", "T"]}]}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with orders_registry() as server:
        yield server


@pytest.fixture(scope="module")
def decoder() -> Iterator[RegistryValues]:
    """For many examples."""
    with orders_registry() as server:
        values = RegistryValues(RegistrySection(url=server.url))
        yield values
        values._end()  # noqa: SLF001 - as below


@pytest.fixture
def values(registry: SchemaRegistry) -> Iterator[RegistryValues]:
    decoder = RegistryValues(RegistrySection(url=registry.url))
    yield decoder
    decoder._end()  # noqa: SLF001 - a user's ends with its process


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


def test_values_of_three_formats(values: RegistryValues) -> None:
    assert shown(values, framed(1, avro(ORDER))) == ORDER
    assert shown(values, framed(2, b'{"number": 7}')) == {"number": 7}
    order = b"\x08\x07\x12\x02\x08\x01"
    placed = {"number": 7, "placed_at": "1970-01-01T00:00:01Z"}
    assert shown(values, framed(3, b"\0" + order)) == placed
    assert shown(values, framed(3, b"\2\0" + order)) == placed
    assert shown(values, framed(3, b"\4\0\0" + b"\x0a\x02ab")) == {"text": "ab"}
    by = [
        values.decoded("orders", (), framed(n, body)) for n, body in ((1, avro(ORDER)), (3, b"\0"))
    ]
    assert [each and each.decoded_by for each in by] == ["AVRO schema 1", "PROTOBUF schema 3"]


def test_values_that_json_has_no_type_for(values: RegistryValues, registry: SchemaRegistry) -> None:
    kinds = {
        "day": {"type": "int", "logicalType": "date"},
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "id": {"type": "string", "logicalType": "uuid"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "raw": "bytes",
    }
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    schema = {"type": "record", "name": "R", "fields": fields}
    registry.add(4, schema)
    at = datetime(2027, 1, 2, 3, tzinfo=UTC)
    given = {"day": at.date(), "at": at, "id": UUID(int=5), "price": Decimal("3.00")}
    assert shown(values, framed(4, avro({**given, "raw": b"\xff\0"}, schema))) == {
        "day": "2027-01-02",
        "at": "2027-01-02T03:00:00+00:00",
        "id": str(UUID(int=5)),
        "price": "3.00",
        "raw": "/wA=",
    }


@pytest.mark.parametrize(
    ("precision", "scale", "unscaled", "text"),
    [
        (4, 2, 123_456_789, "1234567.89"),  # more digits than the schema declares
        (40, 2, -(10**99 + 1), f"-1{'0' * 96}0.01"),
        (9, 8, 0, "0.00000000"),
        (9, 8, 1, "0.00000001"),
        (9, 8, -99, "-0.00000099"),
        (9, 0, 700, "700"),
    ],
)
@pytest.mark.parametrize("kind", [{"type": "bytes"}, {"type": "fixed", "name": "F", "size": 64}])
def test_decimals_are_exact_and_have_no_exponent(
    values: RegistryValues,
    registry: SchemaRegistry,
    kind: dict[str, Any],
    precision: int,
    scale: int,
    unscaled: int,
    text: str,
) -> None:
    schema = {**kind, "logicalType": "decimal", "precision": precision, "scale": scale}
    registry.add(4, schema)
    octets = unscaled.to_bytes(64, signed=True)
    assert shown(values, framed(4, avro(octets, kind))) == text


@pytest.mark.parametrize(
    ("kind", "logical", "given"),
    [
        ("long", "timestamp-millis", 2**53),
        ("long", "local-timestamp-micros", 2**60),
        ("int", "date", 2_932_897),
        ("int", "time-millis", 2**30),
        ("string", "uuid", "order-42"),
    ],
)
def test_what_is_no_date_or_uuid_is_shown_as_it_is(
    values: RegistryValues, registry: SchemaRegistry, kind: str, logical: str, given: object
) -> None:
    """Microseconds as milliseconds, for example. The other fields are not hidden."""
    fields = [{"name": "a", "type": {"type": kind, "logicalType": logical}}]
    registry.add(4, {"type": "record", "name": "R", "fields": fields})
    assert shown(values, framed(4, avro(given, kind))) == {"a": given}


def test_a_field_of_protobuf_that_json_cannot_have_has_a_name(
    values: RegistryValues, registry: SchemaRegistry
) -> None:
    any_type = ("google/protobuf/any.proto", "google.protobuf.Any")
    struct = ("google/protobuf/struct.proto", "google.protobuf.Value")
    time = ("google/protobuf/timestamp.proto", "google.protobuf.Timestamp")
    registry.add(4, importing(any_type, struct, time), "PROTOBUF")
    foreign = AnyMessage(type_url="a/shop.\n" + "x" * 999).SerializeToString()
    for body, named in (
        (b"\x0a\xf2\7" + foreign, r"type_url: a/shop.\nxx"),
        (b"\x12\x09\x11" + pack("<d", float("nan")), "serialize f2 field"),
        (b"\x1a\x09\x08" + b"\xff" * 7 + b"\x7f", "serialize f3 field"),
    ):
        why = reason(values, framed(4, b"\0" + body))
        assert named in why
        assert why.isprintable()
        assert len(why) < 300


def test_numbers_that_json_does_not_have(values: RegistryValues, registry: SchemaRegistry) -> None:
    schema = {"type": "array", "items": {"type": "map", "values": "double"}}
    registry.add(5, schema)
    given = [{"a": float("nan"), "b": float("-inf"), "c": 1.5}]
    assert shown(values, framed(5, avro(given, schema))) == [{"a": "nan", "b": "-inf", "c": 1.5}]
    assert shown(values, framed(2, b'{"number": 7, "more": 1e400}'))["more"] == "inf"


def importing(*types: tuple[str, str], name: str = "own.proto") -> str:
    """The descriptor of a message with a field of each type, from the file before it; as text."""
    file = FileDescriptorProto(name=name, syntax="proto3", dependency=[each for each, _ in types])
    message = file.message_type.add(name="Own")
    for number, (_, kind) in enumerate(types, 1):
        message.field.add(name=f"f{number}", number=number, label=1, type=11, type_name=f".{kind}")
    return base64.b64encode(file.SerializeToString()).decode()


def test_imports_that_no_registry_has(values: RegistryValues, registry: SchemaRegistry) -> None:
    money = ("google/type/money.proto", "google.type.Money")
    price = ("google/type/localized_text.proto", "google.type.LocalizedText")
    decimal = ("confluent/type/decimal.proto", "confluent.type.Decimal")
    variant = ("confluent/type/variant.proto", "confluent.type.Variant")
    former = ("confluent/types/decimal.proto", "confluent.type.Decimal")
    registry.add(4, importing(money, price, decimal, variant, former), "PROTOBUF")
    body = b"\0" + b"\x0a\2\x10\7" + b"\x1a\6\x0a\2\1\2\x18\2" + b"\x22\0"
    assert shown(values, framed(4, body)) == {
        "f1": {"currency_code": "", "units": "7", "nanos": 0},
        "f3": {"value": "AQI=", "precision": 0, "scale": 2},
        "f4": {"metadata": "", "value": ""},
    }
    of_options = FileDescriptorProto(name="own.proto", dependency=["confluent/meta.proto"])
    field = of_options.message_type.add(name="Own").field.add(name="n", number=1, label=1, type=5)
    field.options.MergeFromString(b"\x82\x44\2\x0a\0")  # confluent.field_meta
    registry.add(5, base64.b64encode(of_options.SerializeToString()).decode(), "PROTOBUF")
    assert shown(values, framed(5, b"\0\x08\7")) == {"n": 7}


@pytest.mark.parametrize(
    "name", ["shop/line.proto", "a\n\0", "google/type/none.proto", "google/protobuf/../x.proto"]
)
def test_an_import_that_is_not_there_has_a_name(
    values: RegistryValues, registry: SchemaRegistry, name: str
) -> None:
    registry.add(4, importing((name, "shop.Line")), "PROTOBUF")
    why = f"the schema imports {name!r}, which is not available"
    assert reason(values, framed(4, b"\0")) == why


def test_a_value_that_does_not_fit_its_json_schema(
    values: RegistryValues, registry: SchemaRegistry
) -> None:
    registry.add(6, {"properties": {"a": {"items": {"type": "string"}}}}, "JSON")
    why = "the value does not fit JSON schema 6 (at $.a[1])"
    assert reason(values, framed(6, b'{"a": ["x", 1]}')) == why


def test_a_value_that_does_not_fit_has_a_reason_in_words(
    values: RegistryValues, registry: SchemaRegistry
) -> None:
    registry.add(8, {"$ref": "orders.json"}, "JSON")
    for number, body, why in (
        (1, b"", "it is cut off, or of another schema"),
        (1, avro(ORDER) + b"x", "the value is longer than its schema says"),
        (2, b"{", "it is no JSON"),
        (3, b"\2\4", "it is cut off, or of another schema"),
        (8, b"1", "the schema refers to one that it does not name"),
    ):
        assert reason(values, framed(number, body)).endswith(f" ({why})")


@pytest.mark.parametrize("name", [b"x", b"\0\0\0\0\0", b"\1" + bytes(15), b"\2" + bytes(16)])
def test_a_header_that_names_no_schema_is_a_reason(values: RegistryValues, name: bytes) -> None:
    assert reason(values, b"{}", (NAMED, name)) == "__value_schema_id names no schema"
    assert values.decoded("orders", [(NAMED, name)], None) is None
    assert shown(values, framed(1, avro(ORDER)), (NAMED, name)) == ORDER


def test_a_header_may_name_the_schema(values: RegistryValues, registry: SchemaRegistry) -> None:
    """By its number or UUID; the place of a Protobuf message is in the header, too."""
    some = UUID(int=2**100)
    registry.add(str(some), orders_descriptor(), "PROTOBUF")
    assert shown(values, avro(ORDER), (NAMED, framed(1, b"")), (NAMED, b"x")) == ORDER
    header = (NAMED, b"\1" + some.bytes + b"\4\0\0")
    assert shown(values, b"\x0a\x02ab", header) == {"text": "ab"}
    assert registry.asked[-1] == f"/schemas/guids/{some}?format=serialized"


@pytest.mark.parametrize(
    "value", [None, b"", b"text", b"\0", b"\0\0\0\0\0x", b"\0\xff\xff\xff\xffx", b"\1\0\0\0\1x"]
)
def test_a_value_that_names_no_schema_is_not_asked_about(
    values: RegistryValues, registry: SchemaRegistry, value: bytes | None
) -> None:
    assert values.decoded("orders", [("own", b"1"), (NAMED, None)], value) is None
    assert registry.asked == []


def test_a_schema_is_asked_for_once(values: RegistryValues, registry: SchemaRegistry) -> None:
    for number in (1, 9):
        for _ in range(3):
            values.decoded("orders", (), framed(number, avro(ORDER)))
    assert registry.asked == ["/schemas/ids/1", "/schemas/ids/9"]


def test_after_many_unknown_schemas_the_registry_is_left_alone(
    values: RegistryValues, registry: SchemaRegistry
) -> None:
    for number in range(1_000, 1_200):
        reason(values, framed(number, b""))
    assert len(registry.asked) == 100
    assert "too many schemas were not found" in reason(values, framed(5_000, b""))


def test_a_value_that_is_not_decoded_has_a_reason(
    values: RegistryValues, registry: SchemaRegistry
) -> None:
    registry.schemas |= {"10": 500, "11": 302, "12": 401}
    registry.add(13, "{")
    registry.add(14, ORDER_AVRO, "XML")
    registry.add(16, {**ORDER_AVRO, "doc": "x" * (1 << 20)})
    registry.add(18, "no base64, no descriptor", "PROTOBUF")
    registry.add(19, {"type": 5}, "JSON")
    for number, why in {
        9: "the registry has no schema 9",
        10: "the registry answered 500 for schema 10",
        11: "the registry answered 302 for schema 11",
        12: "the registry answered 401 for schema 12",
        14: "schema 14 is neither Avro nor JSON Schema nor Protobuf",
        16: "schema 16 has more than 1 MiB",
    }.items():
        assert reason(values, framed(number, b"")) == why
    for number in (13, 18, 19):
        assert reason(values, framed(number, b"")).startswith(f"schema {number} cannot be used (")
    for number, body in (
        *((1, b"\xff"), (1, avro(ORDER) + b"x")),
        *((2, b"{}"), (2, b"{"), (2, b"[" * 100_000)),
        *((3, b""), (3, b"\0\xff"), (3, b"\2\4"), (3, b"\1"), (3, b"\xff" * 99)),
    ):
        assert "the value does not fit" in reason(values, framed(number, body))
    assert reason(values, framed(1, bytes(9 << 20))) == "it has more than 8 MiB"
    assert shown(values, framed(1, avro(ORDER))) == ORDER


def referring(*names: str) -> list[dict[str, object]]:
    """References to schemas that are named as their subjects."""
    return [{"name": name, "subject": name, "version": 1} for name in names]


def test_schemas_of_avro_that_others_refer_to(
    values: RegistryValues, registry: SchemaRegistry
) -> None:
    """Directly or not, twice, and as the whole schema: several types of events in one topic."""
    line = {"type": "record", "name": "shop.Line", "fields": [{"name": "n", "type": "Unit"}]}
    order = {"type": "record", "name": "Order", "fields": [{"name": "line", "type": "shop.Line"}]}
    registry.add("shop.Unit/versions/1", {"type": "enum", "name": "shop.Unit", "symbols": ["KG"]})
    registry.add("shop.Line/versions/1", line, references=referring("shop.Unit"))
    registry.add("Order/versions/1", order, references=referring("shop.Line", "shop.Unit"))
    registry.add(40, order, references=referring("shop.Line"))
    registry.add(41, ["shop.Unit", "Order"], references=referring("shop.Unit", "Order"))
    registry.add(42, '"shop.Unit"', references=referring("shop.Unit"))
    for _ in range(2):
        assert shown(values, framed(40, b"\0")) == {"line": {"n": "KG"}}
    assert registry.asked == [
        "/schemas/ids/40",
        "/subjects/shop.Line/versions/1?deleted=true",
        "/subjects/shop.Unit/versions/1?deleted=true",
    ]
    assert shown(values, framed(41, b"\2\0")) == {"line": {"n": "KG"}}
    assert shown(values, framed(41, b"\0\0")) == shown(values, framed(42, b"\0")) == "KG"


@pytest.mark.parametrize("base", [None, "http://shop.example/schemas/order.json"])
@pytest.mark.parametrize("draft", ["draft-07/schema#", "draft/2020-12/schema", None])
def test_schemas_of_json_that_others_refer_to(
    values: RegistryValues, registry: SchemaRegistry, base: str | None, draft: str | None
) -> None:
    named = {"$schema": draft and f"http://json-schema.org/{draft}", "$id": base}
    named = {name: each for name, each in named.items() if each}
    registry.add("unit.json/versions/1", {"enum": ["KG"]}, "JSON")
    line = {"properties": {"n": {"$ref": "unit.json"}}}
    registry.add("line.json/versions/1", line, "JSON", references=referring("unit.json"))
    order = {**named, "items": {"$ref": "line.json#"}}
    registry.add(40, order, "JSON", references=referring("line.json"))
    assert shown(values, framed(40, b'[{"n": "KG"}]')) == [{"n": "KG"}]
    assert reason(values, framed(40, b'[{"n": "LB"}]')).endswith("(at $[0].n)")


def test_schemas_of_protobuf_that_others_refer_to(
    values: RegistryValues, registry: SchemaRegistry
) -> None:
    own = ("shop/order.proto", "shop.Order")
    registry.schemas["shop%2Forder.proto/versions/1"] = {
        "schema": orders_descriptor(),
        "schemaType": "PROTOBUF",
    }
    registry.add(40, importing(own), "PROTOBUF", references=referring(own[0]))
    assert shown(values, framed(40, b"\0\x0a\2\x08\7")) == {"f1": {"number": 7}}
    assert registry.asked[1:] == [
        "/subjects/shop%2Forder.proto/versions/1?deleted=true&format=serialized",
        "/schemas/ids/40?format=serialized",
    ]


def test_references_have_bounds_and_reasons(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add(40, ORDER_AVRO, references=referring("../none"))
    registry.add(41, ORDER_AVRO, references=referring("away"))
    registry.schemas["away/versions/1"] = 500
    for number in range(200):  # each refers to the one before and the one after
        near = referring(str(number - 1), str(number + 1))
        registry.add(f"{number}/versions/1", ORDER_AVRO, references=near)
    registry.add(42, ORDER_AVRO, references=referring("100"))
    long = [f"long{number}" for number in range(3)]
    for name in long:
        registry.add(f"{name}/versions/1", {**ORDER_AVRO, "doc": "x" * 600_000})
    registry.add(43, ORDER_AVRO, references=referring(*long))
    registry.add(44, ORDER_AVRO, references=[{"name": "a"}])
    registry.add("A/versions/1", "true", "JSON", references=referring("B"))
    registry.add("B/versions/1", "true", "JSON", references=referring("A"))
    registry.add(45, {"$ref": "A"}, "JSON", references=referring("A"))
    for number, why in {
        40: "the registry has no version 1 of '../none'",
        41: "the registry answered 500 for version 1 of 'away'",
        42: "schema 42 refers to too many others",
        43: "schema 43 refers to too many others",
        44: "schema 44 cannot be used (KeyError)",
    }.items():
        assert reason(values, framed(number, b"")) == why
    assert "/subjects/..%2Fnone/versions/1?deleted=true" in registry.asked
    assert len(registry.asked) < 150
    assert shown(values, framed(45, b"1")) == 1


def test_a_registry_that_is_slow_for_many_references_is_asked_once_a_minute(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(number) for number in range(30)]
    for name in names:
        registry.add(f"{name}/versions/1", "true", "JSON")
    registry.add(40, "true", "JSON", references=referring(*names))
    answer = registry.answer

    def slowly(path: str) -> Any:
        sleep(0.5)
        return answer(path)

    monkeypatch.setattr(registry, "answer", slowly)
    for _ in range(2):
        found = values.decoded("orders", (), framed(40, b"1"))
        assert found is not None
        assert found.registry_failed
        assert found.not_decoded == "the registry takes too long for all that schema 40 refers to"
    assert len(registry.asked) < 20


@pytest.mark.parametrize("answer", [b"<html>\xff", b"[" * 100_000, b"[]", b"{}", {"schema": 1}])
def test_an_answer_that_is_no_schema_is_the_failure_of_the_registry(
    values: RegistryValues, registry: SchemaRegistry, answer: bytes | dict[str, int]
) -> None:
    registry.schemas["17"] = answer
    found = values.decoded("orders", (), framed(17, b""))
    assert found is not None
    assert found.registry_failed
    why = "the registry answered 200 for schema 17 without a schema; / may be the wrong path"
    assert found.not_decoded == why


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.binary(max_size=40)), max_size=20))
def test_any_bodies(decoder: RegistryValues, bodies: list[tuple[int, bytes]]) -> None:
    for number, body in bodies:
        found = decoder.decoded("orders", (), framed(number, body))
        assert found is not None
        assert (found.decoded is None) == (found.not_decoded is not None)
        assert "ends the process" not in (found.not_decoded or "")
        if found.decoded is not None:
            json.loads(found.decoded)


def test_a_registry_that_is_away(registry: SchemaRegistry) -> None:
    """It is not waited for again at each value."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        values = RegistryValues(RegistrySection(url=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        for number in range(1, 50):
            found = values.decoded("orders", (), framed(number, b""))
            assert found is not None
            assert found.registry_failed
            assert str(found.not_decoded).startswith("the registry does not answer")
        silent.settimeout(10)
        silent.accept()[0].close()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()
        values._end()  # noqa: SLF001 - as above


def test_a_schema_that_ends_the_process_stops_no_other_value(
    values: RegistryValues, registry: SchemaRegistry
) -> None:
    itself = {"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}
    registry.add(20, itself)
    assert shown(values, framed(1, avro(ORDER))) == ORDER
    why = reason(values, framed(20, b""))
    assert why == "this value of schema 20 ends the process that decodes"
    assert shown(values, framed(1, avro(ORDER))) == ORDER
    before = len(registry.asked)
    assert reason(values, framed(20, b"")) == why
    assert len(registry.asked) == before


def killing(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Kills the process, as the kernel does for want of memory, at the first answers."""
    answer, left = registry.answer, list(range(times))

    def kill_and_answer(path: str) -> Any:
        if left:
            left.pop()
            kill(values)
        return answer(path)

    monkeypatch.setattr(registry, "answer", kill_and_answer)


def kill(values: RegistryValues) -> None:
    assert values._child is not None  # noqa: SLF001 - what the host sees of it
    os.kill(values._child[0].pid, signal.SIGKILL)  # noqa: SLF001 - as above


def test_a_process_that_was_killed_hides_no_value(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 1, 2, 1, 2):
        assert shown(values, framed(number, avro(ORDER) if number == 1 else b'{"number": 7}'))
        kill(values)
        assert values._child is not None  # noqa: SLF001 - as below
        values._child[1].poll(60)  # noqa: SLF001 - until it has ended
    killing(values, registry, monkeypatch, 1)
    assert shown(values, framed(1, avro(ORDER))) == ORDER


def test_a_value_that_ends_two_processes_is_tried_again_after_a_minute(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    killing(values, registry, monkeypatch, 3)
    why = "schema 1 ends the process that decodes"
    for _ in range(2):
        assert reason(values, framed(1, avro(ORDER))) == why
    assert len(registry.asked) == 2
    later(monkeypatch, 61)
    assert reason(values, framed(1, avro(ORDER))) == why
    later(monkeypatch, 599)
    assert reason(values, framed(1, avro(ORDER))) == why
    assert len(registry.asked) == 3
    later(monkeypatch, 662)
    assert shown(values, framed(1, avro(ORDER))) == ORDER


def test_values_that_end_one_process_and_not_the_next_start_no_more_for_ever(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30, 40):
        registry.add(number, TREE)
        killing(values, registry, monkeypatch, int(number < 35))
        found = values.decoded("orders", (), framed(number, b"\0"))
        assert found is not None
        assert (found.decoded is None) == (number >= 35)
    assert found is not None
    assert found.not_decoded == "values of orders have ended the decoder too often"
    later(monkeypatch, 61)
    assert shown(values, framed(39, b"\0")) == {"t": None}


def later(monkeypatch: pytest.MonkeyPatch, by_s: float) -> None:
    """So long after the test's begin, in this process."""
    monkeypatch.setattr(in_parent, "time", SimpleNamespace(monotonic=lambda: monotonic() + by_s))


def test_a_value_that_ends_the_process_hides_no_other_of_its_schema(
    values: RegistryValues, registry: SchemaRegistry
) -> None:
    registry.add(30, TREE)
    deep = [b"\2" * (300_000 + n) + b"\0" for n in range(3)]
    for body in (deep[0], deep[0], deep[1]):
        assert "this value of schema 30 ends" in reason(values, framed(30, body))
        assert shown(values, framed(30, b"\0")) == {"t": None}
    reason(values, framed(30, deep[2]))
    why = "values of orders and schema 30 have ended the decoder too often"
    assert reason(values, framed(30, b"\0")) == why
    assert shown(values, framed(1, avro(ORDER))) == ORDER


def test_values_that_end_the_process_block_others_for_a_minute(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of their schema and topic; then those of the topic. They may be shown again."""
    for number in (30, 31):
        registry.add(number, TREE)
    deep = [b"\2" * (300_000 + n) + b"\0" for n in range(3)]
    for by_s in (0, 61):
        later(monkeypatch, by_s)
        for body in deep:
            assert "ends the process" in reason(values, framed(30, body))
        why = "values of orders and schema 30 have ended the decoder too often"
        assert reason(values, framed(30, b"\0")) == why
        for body in deep[:2]:
            assert "ends the process" in reason(values, framed(31, body))
        why = "values of orders have ended the decoder too often"
        assert reason(values, framed(1, avro(ORDER))) == why
    later(monkeypatch, 122)
    assert "this value of schema 30 ends" in reason(values, framed(30, deep[0]))
    assert shown(values, framed(30, b"\0")) == {"t": None}
    assert shown(values, framed(1, avro(ORDER))) == ORDER


def test_values_of_one_topic_hide_none_of_another(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have the same schema, which is no secret."""
    for number in range(30, 40):
        registry.add(number, TREE)
    for number in range(30, 40):  # a tree of this depth ends fastavro
        bad = values.decoded("attacker", (), framed(number, b"\2" * 300_000 + b"\0"))
        assert bad is not None
        assert bad.not_decoded
    assert bad is not None
    assert bad.not_decoded == "values of attacker have ended the decoder too often"
    for number in range(100, 210):
        values.decoded("missing", (), framed(number, b""))
    last = values.decoded("missing", (), framed(211, b""))
    assert last is not None
    assert "none is looked up for a minute" in str(last.not_decoded)
    assert shown(values, framed(30, b"\0")) == {"t": None}
    assert shown(values, framed(1, avro(ORDER))) == ORDER


def test_slow_values_of_one_topic_do_not_go_on_for_ever(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_parent, "_SLOW_S", 0.0)
    monkeypatch.setattr(in_parent, "_SLOW_MAX_S", 0.0)
    first, second = (values.decoded("slow", (), framed(1, avro(ORDER))) for _ in range(2))
    assert first is not None
    assert first.decoded
    assert second is not None
    assert second.not_decoded == "values of slow take the decoder too long"
    assert shown(values, framed(1, avro(ORDER))) == ORDER


def test_a_schema_that_decodes_for_ever(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add(21, {"pattern": "^(a+)+$"}, "JSON")
    assert reason(values, framed(21, b'"b"')).startswith("the value does not fit")
    monkeypatch.setattr(in_parent, "VALUE_S", 0.5)
    assert reason(values, framed(21, json.dumps("a" * 60 + "!").encode())) == (
        "this value of schema 21 takes more than 0.5 s"
    )


def test_a_small_body_that_decodes_to_any_size(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_parent, "VALUE_S", 60)  # a busy host needs long to fill the memory
    registry.add(22, {"type": "array", "items": "null"})
    many = b"\x80\x80\x80\x80\x80\x80\x80\x80\x01\0"
    assert "(MemoryError)" in reason(values, framed(22, many))
    several = b"\x80\x89\x7a\0"  # a million of them
    assert reason(values, framed(22, several)) == "decoded, it has more than 4 MiB"
    assert shown(values, framed(1, avro(ORDER))) == ORDER


def test_no_schema_makes_it_ask_another_address(
    values: RegistryValues, registry: SchemaRegistry
) -> None:
    with schema_registry() as other:
        registry.add(23, {"$ref": f"{other.url}/schemas/ids/1"}, "JSON")
        assert "the value does not fit" in reason(values, framed(23, b"1"))
        assert other.asked == []
    assert registry.asked == ["/schemas/ids/23"]


@pytest.mark.parametrize("kind", ["Basic", "Bearer"])
def test_credentials_come_from_a_file(registry: SchemaRegistry, tmp_path: Path, kind: str) -> None:
    file, secret = tmp_path / "file", "s3cr3t"
    basic = {"user": "ann", "password_file": file}
    section = RegistrySection.model_validate(
        {"url": registry.url, **(basic if kind == "Basic" else {"token_file": file})}
    )
    values = RegistryValues(section)
    assert f"{file} cannot be read" in reason(values, framed(1, b""))
    file.write_text(f"{secret}\n")
    assert shown(values, framed(1, avro(ORDER))) == ORDER
    encoded = base64.b64encode(f"ann:{secret}".encode()).decode()
    assert registry.authorizations == [f"{kind} {encoded if kind == 'Basic' else secret}"]
    child, _ = values._child or (None, None)  # noqa: SLF001 - what the host sees of it
    assert child is not None
    for name in ("cmdline", "environ"):
        assert secret.encode() not in Path(f"/proc/{child.pid}/{name}").read_bytes()
    values._end()  # noqa: SLF001 - as above
