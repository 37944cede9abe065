"""Values decoded by the schemas of a registry: a real process, and a server of the test."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from time import monotonic
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.schema_registry import (
    ORDER_AVRO,
    SchemaRegistry,
    avro,
    framed,
    orders_descriptor,
    orders_registry,
    reason,
    schema_registry,
    shown,
)

from duewheel.config.keys_and_defaults import RegistrySection
from duewheel.registry import decoder as in_child
from duewheel.registry import values as in_parent
from duewheel.registry.values import RegistryValues

NAMED = "__value_schema_id"
ORDER = {"number": 7, "note": "soon"}
# A value of it that is deep enough ends fastavro.
TREE = {"type": "record", "name": "T", "fields": [{"name": "t", "type": ["null", "T"]}]}


@pytest.fixture(scope="module")
def decoder() -> Iterator[RegistryValues]:
    """For many examples."""
    with orders_registry() as server:
        values = RegistryValues(RegistrySection(url=server.url))
        yield values
        values._end()  # noqa: SLF001 - as below


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


def test_a_registry_that_is_away() -> None:
    """It is not asked again at each value, whatever the topic."""
    with closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))
        values = RegistryValues(RegistrySection(url=f"http://127.0.0.1:{closed.getsockname()[1]}"))
        for number in range(1, 50):
            found = values.decoded(f"orders-{number}", (), framed(number, b""))
            closed.listen()
            assert found is not None
            assert found.registry_failed
            assert found.not_decoded == "the registry does not answer: Connection refused"
        closed.setblocking(False)
        with pytest.raises(BlockingIOError):
            closed.accept()
        values._end()  # noqa: SLF001 - as above


def test_a_late_answer_is_the_failure_of_its_schema_alone(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, is_over = registry.answer, Event()

    def late_for_seven(path: str) -> Any:
        if path.endswith("/7"):
            is_over.wait(60)
        return answer(path)

    monkeypatch.setattr(registry, "answer", late_for_seven)
    for _ in range(3):
        late = values.decoded("attacker", (), framed(7, b""))
        assert late is not None
        assert late.registry_failed
        assert late.not_decoded == "the registry does not answer for schema 7: TimeoutError"
        assert shown(values, framed(1, avro(ORDER))) == ORDER
    is_over.set()
    assert registry.asked == ["/schemas/ids/7", "/schemas/ids/1"]


def test_many_schemas_of_one_topic_displace_none_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_child, "_SCHEMAS_MAX", 5)
    asked = list[tuple[str, str]]()

    def ask(topic: str, schema: str, path: str) -> dict[str, str]:
        asked.append((topic, schema))
        return {"schema": '"string"'}

    registry: Any = SimpleNamespace(ask=ask)
    decoder = in_child._Decoder(registry)  # noqa: SLF001 - in this process, which has the count
    others = [("orders", "1"), ("mails", "2")]
    for topic, schema in (*others, *(("attacker", str(n)) for n in range(100)), *others):
        assert decoder.schema(topic, schema)[0] == "AVRO"
    assert Counter(topic for topic, _ in asked) == {"orders": 1, "mails": 1, "attacker": 100}


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


def test_quick_values_of_one_topic_do_not_take_the_decoder_for_ever(
    values: RegistryValues, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, received = list[str](), in_parent._received  # noqa: SLF001 - two for each value

    def counted(*given: Any) -> str:
        answers.append(received(*given))
        return answers[-1]

    def now_s() -> float:
        return 0.09 * len(answers)

    monkeypatch.setattr(in_parent, "_received", counted)
    monkeypatch.setattr(in_parent, "time", SimpleNamespace(monotonic=now_s))
    for _ in range(10_000):
        found = values.decoded("quick", (), framed(1, avro(ORDER)))
        assert found is not None
        if found.decoded is None:
            break
    assert found is not None
    assert found.not_decoded == "values of quick take the decoder too long"
    assert found.out_of_time
    assert shown(values, framed(1, avro(ORDER))) == ORDER


def test_the_time_of_schemas_counts(
    values: RegistryValues, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which each refers to others, and no value takes any."""
    other = {"type": "record", "name": "Other", "fields": []}
    registry.add("other/versions/1", other)
    for number in range(100, 200):
        refers = [{"name": "Other", "subject": "other", "version": 1}]
        registry.add(number, '"string"', references=refers)
    hours_s = 0.0

    def now_s() -> float:
        return hours_s + 10 * len(registry.asked)

    monkeypatch.setattr(in_parent, "time", SimpleNamespace(monotonic=now_s))
    found = [values.decoded("many", (), framed(number, b"\2a")) for number in range(100, 200)]
    assert [each is not None and each.decoded is not None for each in found].count(True) == 21
    assert len(registry.asked) == 42
    assert found[-1] is not None
    assert found[-1].not_decoded == "values of many take the decoder too long"
    assert shown(values, framed(1, avro(ORDER))) == ORDER
    hours_s = 3_600
    found = [values.decoded("many", (), framed(199, b"\2a"))]
    assert found[0] is not None
    assert found[0].decoded == '"a"'


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
