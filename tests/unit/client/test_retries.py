"""Waits, headers and bounds of retries, without a broker."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.consumer.fetcher import ConsumerRecord

from duewheel.client import RetryLater, RetryPolicy
from duewheel.client.retry_headers import HISTORY_MAX, Attempts, Failure, error_text, own_headers
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.schemas.header_names import REQUEST, RETRY

NOW_MS = 1_800_000_000_000
HISTORY_BYTES = 8_192  # of the largest history that is written
RETRIED = {"RETRY_ATTEMPT": b"3", "RETRY_FIRST": b"orders-1@7", "RETRY_DEADLINE_MS": b"9"}


def record(*headers: tuple[str, bytes | None], **fields: Any) -> ConsumerRecord:
    made = ConsumerRecord(
        *("orders", 1, 0, 7, NOW_MS, 0, b"key", b"value", list(headers)), None, 3, 5, 0
    )
    return made._replace(**fields)


# ---- waits ---------------------------------------------------------------------------------------


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 10**6), st.integers())
def test_a_wait_is_bounded_and_depends_on_nothing_else(
    first_ms: int, more_ms: int, attempt: int, seed: int
) -> None:
    policy = RetryPolicy(first=f"{first_ms}ms", longest=f"{first_ms + more_ms}ms")
    wait_ms = policy.wait_ms(attempt, random.Random(seed))
    assert wait_ms == policy.wait_ms(attempt, random.Random(seed))
    assert 1 <= wait_ms <= policy.longest_wait_ms(attempt) <= first_ms + more_ms
    assert policy.longest_wait_ms(attempt) <= policy.longest_wait_ms(attempt + 1)
    if attempt < 30:
        doubled_ms = first_ms * 2 ** (attempt - 1)
        assert policy.longest_wait_ms(attempt) == min(doubled_ms, first_ms + more_ms)


def test_the_jitter_is_full() -> None:
    policy, chance = RetryPolicy(first="10s"), random.Random(7)
    waits_ms = sorted(policy.wait_ms(1, chance) for _ in range(2_000))
    assert waits_ms[20] < 1_000 and waits_ms[-20] > 9_000
    assert {RetryPolicy(first="2ms").wait_ms(1, chance) for _ in range(100)} == {1, 2}, (
        "a retry that is due at once is past due, and a timer topic may reject that"
    )
    assert 4_500 < sum(waits_ms) / 2_000 < 5_500


@pytest.mark.parametrize(
    "impossible",
    [
        {"attempts": 0},
        {"attempts": True},
        {"first": "0ms"},
        {"first": "2h"},
        {"first": 10},
        {"deadline": "0s"},
        {"longest": "soon"},
    ],
)
def test_impossible_policies_are_refused(impossible: dict[str, Any]) -> None:
    with pytest.raises(InvalidTimer):
        RetryPolicy(**impossible)


# ---- headers -------------------------------------------------------------------------------------


class HostileError(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise ValueError


@given(st.lists(st.text(max_size=2_000), min_size=1, max_size=30))
def test_attempts_survive_in_headers_of_bounded_size(texts: list[str]) -> None:
    attempts = Attempts.of(record())
    for n, text in enumerate(texts, 1):
        assert attempts.attempt == n
        failure = Failure.of(n, NOW_MS + n, OSError(text), error_text)
        attempts = attempts.after(failure, NOW_MS + 5)
        headers = attempts.headers(attempts.attempt)
        assert Attempts.of(record(*headers, topic="elsewhere")) == attempts
        assert len(dict(headers)["RETRY_HISTORY"]) <= HISTORY_BYTES
    assert attempts.first == "orders-1@7"
    assert attempts.deadline_ms == NOW_MS + 5
    numbers = [failure.attempt for failure in attempts.history]
    last = range(max(2, len(texts) - HISTORY_MAX + 2), len(texts) + 1)
    assert numbers == [1, *last]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RETRY_ATTEMPT", b"-1"),
        ("RETRY_ATTEMPT", b"0"),
        ("RETRY_ATTEMPT", b"9999999"),
        ("RETRY_ATTEMPT", "²".encode()),
        ("RETRY_ATTEMPT", None),
    ],
)
def test_a_forged_number_begins_at_the_first_attempt(name: str, value: bytes | None) -> None:
    forged = record(*(RETRIED | {name: value}).items())
    assert Attempts.of(forged) == Attempts(1, "orders-1@7", None, ())


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[[[[",
        b"[" * 16_000,
        b"[1, null, {}]",
        b'[{"attempt":"1","at_ms":1,"error":"E","text":""}]',
        b'[{"attempt":1,"at_ms":1e9,"error":"E","text":""}]',
        b'[{"attempt":1,"at_ms":%d,"error":"E","text":""}]' % 10**15,
        b'"%s"' % bytes(20_000),
        b"\xff",
        None,
    ],
)
def test_a_forged_history_is_empty(value: bytes | None) -> None:
    forged = record(*RETRIED.items(), ("RETRY_HISTORY", value), ("RETRY_FIRST", b"no place"))
    assert Attempts.of(forged) == Attempts(3, "unknown", 9, ())


def test_a_forged_history_has_no_more_room_than_a_true_one() -> None:
    entry = {"attempt": 1, "at_ms": 2, "error": "E\ud800" * 99, "text": "\ud800" * 900, "more": 1}
    value = json.dumps([entry]).encode()
    attempts = Attempts.of(record(*RETRIED.items(), ("RETRY_HISTORY", value)))
    (failure,) = attempts.history
    assert len(failure.error) <= 100 and len(failure.text) <= 200
    assert attempts.headers(4)


def test_no_header_of_duewheels_leaves_with_a_retry() -> None:
    own = [("x", b"1"), ("x", b""), ("y", None)]
    added = [(name, b"1") for name in (*REQUEST, *RETRY)]
    assert own_headers(record(*added, *own)) == [("x", b"1"), ("x", b""), ("y", b"")]
    assert own_headers(record(headers=None)) == []


@pytest.mark.parametrize(
    "text",
    [
        "login failed: password=hunter2",
        "{'sasl_plain_password': 'hunter2'}",
        'token: "hunter2" refused',
        "Authorization: Bearer hunter2",
        "postgresql://ann:hunter2@db:5432/orders",
        "GET https://hunter2@host/x?api_key=hunter2&page=1",
        "AWS_SECRET_ACCESS_KEY=hunter2",
    ],
)
def test_secrets_leave_no_trace(text: str) -> None:
    assert "hunter2" not in error_text(OSError(text))
    assert "***" in error_text(OSError(text))


def test_an_error_without_text_has_its_class() -> None:
    failure = Failure.of(1, NOW_MS, HostileError(), error_text)
    assert failure == replace(failure, error=f"{__name__}.HostileError"[:100], text="")
    assert Failure.of(1, NOW_MS, ValueError("a\n\tb"), error_text).text == "a b"
    assert Failure.of(1, NOW_MS, ValueError(), error_text).error == "ValueError"


def test_no_forged_header_gives_a_retry_the_id_of_another_message() -> None:
    """A cancel of one would stop the other."""
    sent = list[Any]()

    def send(*record: Any) -> Any:
        sent.append(record)
        return SimpleNamespace(get=lambda _: None)

    producer = ConfiguredProducer(transactional_id="t")
    producer.send = send
    retry_later = RetryLater(producer, "orders.delayed", dead_letter_topic="orders.failed")
    forged = record(("RETRY_ATTEMPT", b"2"), ("RETRY_FIRST", b"orders-1@7"), offset=9)
    retry_later.send(forged, ValueError())
    [(_, _, _, headers)] = sent
    named = dict(headers)
    assert (named["UNIQ_KEY"], named["RETRY_FIRST"]) == (b"orders-1@9/3", b"orders-1@7")


# ---- producers -----------------------------------------------------------------------------------


class ConfiguredProducer:
    """A KafkaProducer's settings."""

    def __init__(self, **config: Any) -> None:
        unset = dict.fromkeys(("transactional_id", "key_serializer", "value_serializer"))
        self.config = unset | config
        self.send: Callable[..., Any] = pytest.fail


@pytest.mark.parametrize(
    ("config", "topics", "reason"),
    [
        ({}, {}, "neither a DelayProducer nor transactional"),
        ({"transactional_id": "t", "key_serializer": str}, {}, "key_serializer"),
        ({"transactional_id": "t"}, {"dead_letter_topic": "a b"}, "no topic name"),
        ({"transactional_id": "t"}, {"target": "orders.delayed"}, "timer topic itself"),
    ],
)
def test_producers_and_topics_without_a_guarantee_are_refused(
    config: dict[str, Any], topics: dict[str, Any], reason: str
) -> None:
    given: dict[str, Any] = {"dead_letter_topic": "orders.failed"} | topics
    with pytest.raises(ConfigError, match=reason):
        RetryLater(ConfiguredProducer(**config), "orders.delayed", **given)


async def coroutine(record: object) -> None: ...


def generator(record: object) -> Iterator[None]:
    yield


async def async_generator(record: object) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("handler", [coroutine, generator, async_generator])
def test_handlers_whose_call_handles_nothing_are_refused(handler: Callable[[Any], Any]) -> None:
    """Otherwise the offset of a record that nobody has handled would be committed."""
    producer = ConfiguredProducer(transactional_id="t")
    retry_later = RetryLater(producer, "orders.delayed", dead_letter_topic="orders.failed")
    consumer: Any = SimpleNamespace(
        config={"enable_auto_commit": False, "isolation_level": "read_committed"}
    )
    for decorator in (retry_later, retry_later.in_transactions(consumer)):
        with pytest.raises(ConfigError, match="no plain function"):
            decorator(handler)


class CallableObject:
    async def __call__(self, record: object) -> None: ...


def wrapped(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda record: handler(record)  # noqa: PLW0108 - the kind of the function is hidden


@pytest.mark.parametrize("handler", [CallableObject(), wrapped(coroutine), wrapped(generator)])
def test_results_that_have_handled_nothing_are_refused(handler: Callable[[Any], Any]) -> None:
    """A wrapper or an object hides the kind of its function."""
    producer = ConfiguredProducer(transactional_id="t")
    retry_later = RetryLater(producer, "orders.delayed", dead_letter_topic="orders.failed")
    with pytest.raises(ConfigError, match="handles no record"):
        retry_later(handler)(object())
