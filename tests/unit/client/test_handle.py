"""Recall handles without a broker: their content, and refused texts."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duewheel.api.changes import Answered
from duewheel.api.requests import NamedTimers
from duewheel.cli.output import Printer
from duewheel.cli.replies import ReplyWait, show_outcome
from duewheel.client import Timer
from duewheel.client.handle import RecallHandle, id_bytes
from duewheel.config.keys_and_defaults import TimerSection as Timer_
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.ops.changes.requests import topic_of
from duewheel.schemas.name_patterns import may_name_topic

TOPIC = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(may_name_topic)
HANDLE = st.builds(
    RecallHandle,
    TOPIC,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.text(min_size=1, max_size=60),
)
SAMPLE = RecallHandle("orders.delayed", 3, 4711, 1_800_000_000_000, "order-42")


@given(HANDLE)
@example(RecallHandle("t", 0, 0, 0, "t-0@0"))
def test_a_handle_is_text_for_urls_and_carries_all_of_it(handle: RecallHandle) -> None:
    text = handle.encode()
    assert RecallHandle.is_one(text)
    assert RecallHandle.decode(text) == handle
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_the_handle_of_a_timer() -> None:
    timer = Timer("orders.delayed-3@4711", "orders.delayed", 3, 4711, 1_800_000_000_000)
    assert RecallHandle.decode(timer.handle) == RecallHandle(
        "orders.delayed", 3, 4711, 1_800_000_000_000, "orders.delayed-3@4711"
    )
    given_id = Timer("order-42", "orders.delayed", 3, 4711, 1_800_000_000_000)
    assert given_id.handle == SAMPLE.encode()
    far = Timer("x", "t", 0, 0, 10**30)  # due after all that ingest accepts
    assert RecallHandle.decode(far.handle).due_ms == 2**63 - 1


def test_unused_bits_of_the_last_character_are_no_handle() -> None:
    last = RecallHandle("t", 0, 0, 0, "four").encode()
    changed = last[:-1] + chr(ord(last[-1]) + 1)
    assert base64.urlsafe_b64decode(changed + "==") == base64.urlsafe_b64decode(last + "==")
    assert not RecallHandle.is_one(changed)


@given(HANDLE, st.data())
def test_what_was_changed_or_cut_short_is_no_handle(
    handle: RecallHandle, data: st.DataObject
) -> None:
    text = handle.encode()
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("ABYZabyz0189-_ =.\n").filter(lambda c: c != text[place]))
    for changed in (
        text[:place] + other + text[place + 1 :],
        text[:place],
        text[place + 1 :],
        text[:place] + other + text[place:],
    ):
        assert not RecallHandle.is_one(changed)
        with pytest.raises(InvalidTimer, match="no recall handle, or was changed or cut short"):
            RecallHandle.decode(changed)


@given(st.one_of(st.text(), st.binary().map(lambda b: base64.urlsafe_b64encode(b).decode())))
@example("v1 orders broker-a 1700000000000 7F00000100002A9F")
@example("")
def test_other_text_is_no_handle(text: str) -> None:
    assert not RecallHandle.is_one(text)


def made_up(content: bytes) -> str:
    """With a checksum that is right."""
    checksum = zlib.crc32(content, zlib.crc32(b"duewheel recall handle"))
    return base64.urlsafe_b64encode(content + struct.pack(">I", checksum)).decode().rstrip("=")


@pytest.mark.parametrize(
    ("head", "rest", "reason"),
    [
        ((2, 0, 0, 0, 1), b"t", "has version 2, this is version 1"),
        ((1, -1, 0, 0, 1), b"t", "forged"),
        ((1, 0, -1, 0, 1), b"t", "forged"),
        ((1, 0, 0, 0, 0), b"", "forged"),
        ((1, 0, 0, 0, 3), b"a b", "forged"),
        ((1, 0, 0, 0, 2), b"\xff\xfe", "forged"),
    ],
)
def test_whole_handles_that_are_refused(head: tuple[int, ...], rest: bytes, reason: str) -> None:
    text = made_up(struct.pack(">BiqqB", *head) + rest)
    assert RecallHandle.is_one(text)
    with pytest.raises(InvalidTimer, match=reason):
        RecallHandle.decode(text)


def test_ids_that_ingest_would_not_accept() -> None:
    assert id_bytes("ü" * 127 + "x") == ("ü" * 127 + "x").encode()
    for refused in ("", "ü" * 128):
        with pytest.raises(InvalidTimer, match="not 1 to 255"):
            id_bytes(refused)


SETTINGS = Settings(timer=Timer_(topics=("orders.delayed", "bills.delayed")))


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({}, "either a handle, or an id"),
        ({"handle": "h", "id": "7", "key": "k"}, "either a handle, or an id"),
        ({"id": "7"}, "an id needs"),
        ({"handle": "h"}, "no recall handle"),
        ({"handle": RecallHandle("t", 0, 0, 0, "7").encode()}, "which is no timer topic"),
    ],
)
def test_flags_that_name_no_timer(named: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        topic_of(SETTINGS, NamedTimers.of(named))


def test_where_named_timers_are() -> None:
    assert topic_of(SETTINGS, NamedTimers(handle=SAMPLE.encode())) == "orders.delayed"
    other = RecallHandle("bills.delayed", 0, 0, 0, "7").encode()
    assert topic_of(SETTINGS, NamedTimers(handle=other)) == "bills.delayed"
    assert topic_of(SETTINGS, NamedTimers(id="7", partition=0)) == "orders.delayed"
    named = NamedTimers(id="7", partition=0, timer_topic="bills.delayed")
    assert topic_of(SETTINGS, named) == "bills.delayed"
    pattern = Settings(timer=Timer_(topics_pattern="orders[.].*"))
    assert topic_of(pattern, NamedTimers(handle=SAMPLE.encode())) == "orders.delayed"
    with pytest.raises(ConfigError, match="name the timer topic"):
        topic_of(pattern, NamedTimers(id="7", partition=0))


@pytest.mark.parametrize(
    ("answer", "wait_s", "reply_topic", "code", "says"),
    [
        ("cancelled", 10, "replies", 0, ""),
        ("already_delivered", 10, "replies", 1, ""),
        ("unknown", 10, "replies", 1, ""),
        (None, 10, "replies", 1, "no reply in time: it takes effect without one"),
        (None, 10, None, 0, "written, and takes effect"),
        (None, 0, "replies", 0, ""),
        (None, 0, None, 0, ""),
    ],
)
def test_exit_codes(
    answer: str | None,
    wait_s: float,
    reply_topic: str | None,
    code: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = Settings(timer=Timer_(topics=("orders.delayed",), reply_topic=reply_topic))
    place = {"id": "a", "timer_topic": "orders.delayed", "partition": 0, "offset": 1}
    result = Answered.model_validate({**place, "answer": answer})
    assert show_outcome(settings, result, ReplyWait(wait_s), Printer(is_json=True)) == code
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {**place, "answer": answer}
    assert (says in shown.err) and bool(says) == bool(shown.err)
