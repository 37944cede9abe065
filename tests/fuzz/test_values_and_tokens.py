"""Values by the schemas of a registry, the schemas themselves, and files of tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.schema_registry import (
    AVRO,
    JSON,
    PROTOBUF,
    SchemaRegistry,
    avro,
    framed,
    orders_registry,
)

from duewheel.config.keys_and_defaults import RegistrySection, ServeSection
from duewheel.errors import ConfigError
from duewheel.registry.formats import KINDS
from duewheel.registry.values import Decoded, RegistryValues
from duewheel.serve.access import TOKEN_CHARACTERS_MIN, Access

Change = Callable[[st.DataObject, bytes], bytes]

OTHER = 4
BODIES = {
    AVRO: avro({"number": 7, "note": "soon"}),
    JSON: b'{"number": 7, "note": ["soon"]}',
    PROTOBUF: b"\0\x08\x07\x12\x06\x08\x80\x92\xb8\xc3\x06",
}
TOKENS = b"""\
orders 0123456789abcdef0123 orders.* mails
admin abcdef0123456789abcd
"""


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with orders_registry() as server:
        yield server


@pytest.fixture(scope="module")
def values(registry: SchemaRegistry) -> Iterator[RegistryValues]:
    decoder = RegistryValues(RegistrySection(url=registry.url))
    yield decoder
    decoder._end()  # noqa: SLF001 - a user's ends with its process


def check(found: Decoded | None) -> None:
    """It is JSON that names its schema, or a reason in one line."""
    assert found is not None
    if found.decoded is None:
        assert found.not_decoded and found.not_decoded.isprintable()
    else:
        json.loads(found.decoded.encode())
        assert found.decoded_by and not found.not_decoded


@given(data=st.data(), schema=st.sampled_from(sorted(BODIES)))
def test_any_value(
    values: RegistryValues, damage: Change, data: st.DataObject, schema: int
) -> None:
    topic = data.draw(st.sampled_from(["orders", "mails"]))
    check(values.decoded(topic, [], framed(schema, damage(data, BODIES[schema]))))
    good = values.decoded("good", [], framed(schema, BODIES[schema]))
    assert good is not None and good.decoded is not None, "another topic's values are decoded"


@given(data=st.data(), schema=st.sampled_from([AVRO, JSON, PROTOBUF]))
def test_any_schema(
    registry: SchemaRegistry, alter: Change, damage: Change, data: st.DataObject, schema: int
) -> None:
    """A child for each example would take seconds: schemas are made in this process."""
    from duewheel.registry import decoder

    text = str(registry.schemas[str(schema)]["schema"])  # type: ignore[index, call-overload]
    change = damage if schema == PROTOBUF else alter
    changed = change(data, text.encode()).decode(errors="replace")
    registry.schemas[str(OTHER)] = {
        **registry.schemas[str(schema)],  # type: ignore[dict-item]
        "schema": changed,
    }
    asked = decoder._Registry(registry.url, None, None)  # noqa: SLF001
    kind, found = decoder._Decoder(asked).schema("orders", str(OTHER))  # noqa: SLF001
    assert isinstance(found, decoder._Refused) or kind in KINDS  # noqa: SLF001
    if isinstance(found, decoder._Refused):  # noqa: SLF001
        assert str(found).isprintable()


@given(data=st.data())
def test_any_file_of_tokens(
    tmp_path_factory: pytest.TempPathFactory, damage: Change, data: st.DataObject
) -> None:
    """Refused without a word of the file, or tokens of which each has the scope of its line."""
    path = Path(tmp_path_factory.getbasetemp()) / "tokens"
    content = damage(data, TOKENS)
    path.write_bytes(content)
    words = content.decode("ascii", errors="replace").split()
    try:
        access = Access.load(ServeSection(token_file=path))
    except ConfigError as error:
        refusal = str(error)
    else:
        refusal = ""
        check_tokens(access, content.decode("ascii", errors="replace").splitlines())
    assert not [word for word in words if len(word) >= TOKEN_CHARACTERS_MIN and word in refusal]


def check_tokens(access: Access, lines: Sequence[str]) -> None:
    assert access.change
    for token, caller in access.change.items():
        (words,) = [each.split() for each in lines if token.decode() in each.split()[:2]]
        assert len(token) >= TOKEN_CHARACTERS_MIN > len(caller.name)
        assert words in ([token.decode()], [caller.name, token.decode(), *caller.scope.patterns])
