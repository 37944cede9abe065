"""Messages as results show them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from duewheel.api.dead_letters import DeadLetterWithMessage
from duewheel.api.messages import (
    BODY_BYTES,
    HEADERS_SHOWN,
    KEY_SHOWN_BYTES,
    LONG_KEY_BYTES,
    NAMES_BYTES,
    octets_shown,
    start_of,
)
from duewheel.checkpoints.dlq_replay_position import ReplayPosition
from duewheel.ops.dead_letters.listing import summary_of
from duewheel.schemas.dead_letters import DeadLetter


def test_bytes_are_text_or_base64() -> None:
    assert octets_shown("key", "ü".encode()) == {"key": "ü"}
    assert octets_shown("key", b"\xff") == {"key_base64": "/w=="}
    assert octets_shown("key", None) == {"key": None}


def test_of_a_long_key_the_start_is_shown_in_whole_characters() -> None:
    assert start_of(None) == (None, None)
    assert start_of(b"a" * KEY_SHOWN_BYTES) == (b"a" * KEY_SHOWN_BYTES, None)
    assert start_of(b"a" * 5_000_000) == (b"a" * KEY_SHOWN_BYTES, 5_000_000)
    for before in range(4):
        shown, _ = start_of(b"a" * before + "𝄞".encode() * KEY_SHOWN_BYTES)
        assert shown is not None and KEY_SHOWN_BYTES - 4 < len(shown) <= KEY_SHOWN_BYTES
        assert shown.decode().endswith("𝄞")
    no_text = b"\xff" * (KEY_SHOWN_BYTES + 1)
    assert start_of(no_text) == (no_text[:KEY_SHOWN_BYTES], KEY_SHOWN_BYTES + 1)


MANY = 100_000
LETTER = DeadLetter(0, 7, 1_800_000_000_000, b"\1" * (2 << 20), b"\1" * (2 << 20), ())


def shown(
    headers: list[tuple[str, bytes | None]], *, body: bool, decoded: str = ""
) -> tuple[DeadLetterWithMessage, int]:
    """A letter with a long key and value, and how many headers were read for it."""
    read = 0

    def each_header() -> Iterator[tuple[str, bytes | None]]:
        nonlocal read
        for read, each in enumerate(headers, 1):  # noqa: B007 - counts them
            yield each

    summary = summary_of(LETTER, ReplayPosition.decode(None, "id"), LONG_KEY_BYTES)
    fields = {"decoded": decoded, "decoded_by": "AVRO schema 1"} if decoded else {}
    message = each_header(), len(headers), LETTER.value
    found = DeadLetterWithMessage.of(summary, *message, body=body, decode=lambda: fields)
    return found, read


@pytest.mark.parametrize("body", [False, True])
@pytest.mark.parametrize(
    ("headers", "names"),
    [
        ([("\1" * 40, None)] * MANY, HEADERS_SHOWN),
        ([("a" * (NAMES_BYTES // 3), None)] * 4, 3),
        ([("ü" * (NAMES_BYTES // 2), b""), ("a", b"")], 1),
        ([("\1" * (1 << 21), None), ("a", b"")], 0),
        ([("a", b"\1" * (1 << 19))] * 4, 4),
    ],
)
def test_a_message_of_any_length_is_a_short_answer(
    headers: list[tuple[str, bytes | None]], names: int, *, body: bool
) -> None:
    """A key or headers of 40 MiB are a few KiB of a compressed record, and 240 MiB of JSON."""
    found, read = shown(headers, body=body)
    assert read <= HEADERS_SHOWN + 1
    assert (found.key, found.key_bytes) == ("\1" * LONG_KEY_BYTES, 2 << 20)
    assert len(found.model_dump_json()) < (14 << 20 if body else 1 << 20)
    if body:
        assert found.headers is not None
        sizes = [len(each.name) + len(each.value or "") for each in found.headers]
        assert sum(sizes) <= BODY_BYTES
        assert (found.value, found.value_shown_bytes) == ("\1" * BODY_BYTES, BODY_BYTES)
    else:
        assert found.header_names == [name for name, _ in headers[:names]]
        assert found.value_shown_bytes is None
    count = len(found.headers or found.header_names or ())
    assert found.header_count == (None if count == len(headers) else len(headers))


def test_a_message_that_fits_is_whole() -> None:
    """Its fields do not even mention that others are cut."""
    headers: list[tuple[str, bytes | None]] = [("a", b"1")] * HEADERS_SHOWN
    found, _ = shown(headers, body=True, decoded="x" * BODY_BYTES)
    assert found.headers is not None and len(found.headers) == HEADERS_SHOWN
    assert "header_count" not in found.as_json()
    assert found.decoded == "x" * BODY_BYTES


def test_a_value_whose_json_is_too_long_is_not_decoded() -> None:
    found, _ = shown([], body=True, decoded="x" * (BODY_BYTES + 1))
    assert (found.decoded, found.decoded_by) == (None, None)
    assert found.not_decoded == "its JSON has more than 1 MiB"
