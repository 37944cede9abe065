"""What an import makes of a member of a sorted set."""

from __future__ import annotations

import pytest

from duewheel.ops.imports.redis_set import MemberFields
from duewheel.ops.imports.source import Entry

JOB = b'{"jid": "7", "queue": "orders", "order": {"n": 1}, "body": null}'
FROM_FIELDS = MemberFields(topic_field="queue", key_field="order", id_field="jid")


def entry(fields: MemberFields, member: bytes, score: float = 1_800_000_000.5) -> Entry:
    return fields.entry("set@1", member, score, "timers")


def test_a_member_is_the_message_as_it_is() -> None:
    made = entry(MemberFields(topic="orders"), b"\xff\x00")
    assert (made.key, made.value, made.refusal) == (None, b"\xff\x00", None)
    headers = dict(made.headers)
    assert headers["TIMER_DELIVER_MS"] == b"1800000000500"
    assert headers["REAL_TOPIC"] == b"orders"
    assert made.route == headers["UNIQ_KEY"]
    other = entry(MemberFields(topic="orders"), b"\xff\x01")
    assert dict(other.headers)["UNIQ_KEY"] != headers["UNIQ_KEY"]


def test_fields_of_json_name_target_key_id_and_value() -> None:
    made = entry(FROM_FIELDS, JOB)
    assert (made.key, made.value, made.route) == (b'{"n":1}', JOB, b'{"n":1}')
    assert dict(made.headers)["UNIQ_KEY"] == b"7"
    assert dict(made.headers)["REAL_TOPIC"] == b"orders"
    body = MemberFields(topic="orders", value_field="body", unit="ms")
    assert entry(body, JOB, 1_800_000_000_000).value is None
    assert dict(entry(body, JOB, 5.0).headers)["TIMER_DELIVER_MS"] == b"5"


@pytest.mark.parametrize(
    ("member", "score", "reason"),
    [
        (b"plain", 1.0, "cannot be read"),
        (b"[1]", 1.0, "it is no JSON object"),
        (b"{}", 1.0, "it has no field 'queue'"),
        (b'{"queue": null, "order": "", "jid": "1"}', 1.0, "the target '' is no topic name"),
        (b'{"queue": "timers", "order": "", "jid": "1"}', 1.0, "the timer topic itself"),
        (JOB, float("inf"), "cannot be read"),
    ],
)
def test_a_member_that_is_no_timer_is_refused(member: bytes, score: float, reason: str) -> None:
    refusal = entry(FROM_FIELDS, member, score).refusal
    assert refusal is not None
    assert refusal.code == "unusable"
    assert reason in refusal.reason
