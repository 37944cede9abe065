"""What values of Avro, JSON Schema and Protobuf are decoded to; schemas that others refer to."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from decimal import Decimal
from struct import pack
from time import sleep
from typing import Any
from uuid import UUID

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tests.harness.schema_registry import (
    ORDER_AVRO,
    SchemaRegistry,
    avro,
    framed,
    orders_descriptor,
    reason,
    shown,
)

from duewheel.registry.values import RegistryValues

ORDER = {"number": 7, "note": "soon"}


@pytest.mark.parametrize(
    ("step", "value", "fits"),
    [(0.01, b"19.99", True), (0.01, b"19.995", False), (0.1, b"1e300", True), (3, b'"x"', True)],
)
def test_a_multiple_is_one_of_decimal_numbers(
    values: RegistryValues, registry: SchemaRegistry, step: float, value: bytes, *, fits: bool
) -> None:
    registry.add(50, {"multipleOf": step}, "JSON")
    if fits:
        assert shown(values, framed(50, value)) == json.loads(value)
    else:
        assert "does not fit" in reason(values, framed(50, value))


def test_a_json_schema_without_its_draft_is_of_draft_7(
    values: RegistryValues, registry: SchemaRegistry
) -> None:
    registry.add(51, {"items": [{"type": "integer"}, {"type": "string"}]}, "JSON")
    assert shown(values, framed(51, b'[1, "a"]')) == [1, "a"]


def test_a_pattern_that_is_none_of_python_is_named(
    values: RegistryValues, registry: SchemaRegistry
) -> None:
    registry.add(52, {"properties": {"name": {"pattern": r"^\p{Lu}"}}}, "JSON")
    why = "schema 52 cannot be used (at $.properties.name.pattern)"
    assert reason(values, framed(52, b"{}")) == why


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
