"""Schemas of Avro, JSON Schema and Protobuf, and how values are decoded by them.

Only the child process (decoder.py) may do so.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from datetime import time as time_of_day
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

Decode = Callable[[bytes], Any]

NAME_MAX = 200  # characters in a reason

# Imports that no registry has. A value may have any type of the first in an Any.
_STANDARD_FILES = "any api duration empty field_mask struct timestamp type wrappers"
_LIBRARY_FILE = re.compile(r"(google/(?:protobuf|type)/\w+)\.proto")


def _file_of(message: str, **kinds: str) -> dict[str, Any]:
    fields = [
        {"name": name, "number": number, "type": f"TYPE_{kind}", "label": "LABEL_OPTIONAL"}
        for number, (name, kind) in enumerate(kinds.items(), 1)
    ]
    messages = [{"name": message, "field": fields}]
    return {"package": "confluent.type", "message_type": messages, "syntax": "proto3"}


_CONFLUENT_FILES: Mapping[str, dict[str, Any]] = {
    "confluent/meta.proto": {},  # of options alone
    "confluent/type/decimal.proto": _file_of(
        "Decimal", value="BYTES", precision="UINT32", scale="INT32"
    ),
    "confluent/type/variant.proto": _file_of("Variant", metadata="BYTES", value="BYTES"),
    "confluent/types/decimal.proto": {  # the former name
        "dependency": ["confluent/type/decimal.proto"],
        "public_dependency": [0],
    },
}


def _avro(text: str, referred: Mapping[str, str]) -> Decode:
    from fastavro import parse_schema, schemaless_reader

    _adapt_readers()
    names: dict[str, Any] = {}
    for each in referred.values():
        parse_schema(json.loads(each), names)
    # The library forgets these names unless the schema is a record, which adds no byte.
    fields = [{"name": "value", "type": json.loads(text)}]
    schema = parse_schema({"type": "record", "name": "_Value", "fields": fields}, names)

    def decode(body: bytes) -> Any:
        stream = BytesIO(body)
        value: Any = schemaless_reader(stream, schema, None)
        if stream.read(1):
            raise ValueError("the value is longer than its schema says")
        return value["value"]

    return decode


@cache
def _adapt_readers() -> None:
    from fastavro.read import LOGICAL_READERS

    for name, read in LOGICAL_READERS.items():
        LOGICAL_READERS[name] = partial(_or_as_it_is, read)
    # The library rounds to the precision of the schema.
    LOGICAL_READERS.update(dict.fromkeys(("bytes-decimal", "fixed-decimal"), _decimal))


def _or_as_it_is(read: Callable[..., Any], given: Any, *schemas: Any) -> Any:
    """A date or a UUID, for example; what is none must not hide the other fields."""
    try:
        return read(given, *schemas)
    except (ValueError, OverflowError):
        return given


def _decimal(octets: bytes, schema: Any, _: object = None) -> str:
    sign, digits, _ = Decimal(int.from_bytes(octets, signed=True)).as_tuple()
    return format(Decimal((sign, digits, -schema.get("scale", 0))), "f")


def _json(text: str, referred: Mapping[str, str]) -> Decode:
    from jsonschema import Draft7Validator
    from jsonschema.validators import extend, validator_for
    from referencing import Registry
    from referencing.jsonschema import specification_with

    schema = json.loads(text)
    draft: Any = validator_for(schema, default=Draft7Validator)  # as Confluent's serializers
    draft.check_schema(schema)
    kind = extend(draft, {"multipleOf": _multiple_of})

    @cache
    def referred_to(uri: str) -> Any:
        for name, each in referred.items():
            if uri == name or uri.endswith(f"/{name}"):  # `$id` of the schema may be before it
                specification = specification_with(kind.META_SCHEMA["$schema"])
                return specification.create_resource(json.loads(each))
        raise LookupError

    registry: Any = Registry
    # By default it would fetch what `$ref` names.
    validator = kind(schema, registry=registry(retrieve=referred_to))

    def decode(body: bytes) -> Any:
        value = json.loads(body)
        validator.validate(value)
        return value

    return decode


def _multiple_of(validator: Any, step: float, value: object, _: object) -> Iterator[Exception]:
    """The library divides binary numbers, of which 19.99 is no multiple of 0.01."""
    from jsonschema import ValidationError

    is_number = validator.is_type(value, "number")
    if is_number and (Fraction(str(value)) / Fraction(str(step))).denominator > 1:
        yield ValidationError(f"{value} is no multiple of {step}")


def _protobuf(text: str, referred: Mapping[str, str]) -> Decode:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message_factory import GetMessageClass

    file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    pool = DescriptorPool()
    _import(pool, [f"google/protobuf/{name}.proto" for name in _STANDARD_FILES.split()], {})
    _import(pool, file.dependency, referred)
    pool.AddSerializedFile(file.SerializeToString())

    def decode(body: bytes) -> Any:
        stream = BytesIO(body)
        types, names = file.message_type, [file.package] if file.package else []
        for place in [_zigzag(stream) for _ in range(_zigzag(stream))] or [0]:
            names.append(types[place].name)
            types = types[place].nested_type
        message = GetMessageClass(pool.FindMessageTypeByName(".".join(names)))
        return MessageToDict(
            message.FromString(stream.read()),
            always_print_fields_with_no_presence=True,
            preserving_proto_field_name=True,
            descriptor_pool=pool,
        )

    return decode


def _import(pool: DescriptorPool, names: Iterable[str], referred: Mapping[str, str]) -> None:
    """Adds files to the pool, each after those that it imports itself."""
    for name in names:
        try:
            pool.FindFileByName(name)
        except KeyError:
            file = _imported(name, referred)
            _import(pool, file.dependency, referred)
            pool.AddSerializedFile(file.SerializeToString())


def _imported(name: str, referred: Mapping[str, str]) -> FileDescriptorProto:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    if name in referred:
        file = FileDescriptorProto.FromString(base64.b64decode(referred[name], validate=True))
        file.name = name
        return file
    if name in _CONFLUENT_FILES:
        return FileDescriptorProto(name=name, **_CONFLUENT_FILES[name])
    try:
        if found := _LIBRARY_FILE.fullmatch(name):
            module = import_module(f"{found[1].replace('/', '.')}_pb2")
            return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    except ModuleNotFoundError:
        pass
    raise ImportError(f"the schema imports {name[:NAME_MAX]!r}, which is not available")


def _zigzag(stream: BytesIO) -> int:
    """A varint of Protobuf's place, in which no number is negative."""
    number = shift = 0
    more = True
    while more:
        (octet,) = stream.read(1)
        number |= (octet & 0x7F) << shift
        shift, more = shift + 7, octet > 0x7F
        if shift > 21:
            raise ValueError("no place of a message")
    if number & 1:
        raise ValueError("no place of a message")
    return number >> 1


# Of errors of the libraries: others say nothing that a user of the registry knows.
_WORDS = {
    "EOFError": "it is cut off, or of another schema",
    "IndexError": "it is cut off, or of another schema",
    "JSONDecodeError": "it is no JSON",
    "_WrappedReferencingError": "the schema refers to one that it does not name",
}
_NAMING = {"SerializeToJsonError", "TypeError"}  # of Protobuf: they name the field or the type
KINDS = {"AVRO": _avro, "JSON": _json, "PROTOBUF": _protobuf}


def reason(kind: str, error: Exception) -> str:
    """Why a value does not fit its schema, or a schema cannot be used."""
    if place := getattr(error, "json_path", None):
        return f"at {place[:NAME_MAX]}"
    name = type(error).__name__
    if (kind == "AVRO" and isinstance(error, ValueError)) or name in _NAMING:
        name = ascii(str(error)[:NAME_MAX])[1:-1]
    return _WORDS.get(name, name)


# ---- the value as JSON --------------------------------------------------------------------------


def as_json(value: Any) -> str:
    """What JSON does not have becomes text."""
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False)
    except ValueError:  # NaN and infinity are no JSON
        return json.dumps(_with_texts(value), default=_plain, ensure_ascii=False)


def _with_texts(value: Any) -> Any:
    """The value with texts in the place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _with_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_texts(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: object) -> str:
    """What JSON has no type for, as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | time_of_day) else str(value)
