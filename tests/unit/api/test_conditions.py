"""What is wrong with a shard, in sentences."""

from __future__ import annotations

from duewheel.api import conditions
from duewheel.api.reasons import REASONS, WITHOUT_FILES
from duewheel.api.shard import ShardView


def shard(
    not_ready: dict[str, str] | None = None,
    role: str = "owner",
    ingest: str = "running",
    rows_without_room: int = 0,
    waiting: int = 0,
    **dequeue: object,
) -> ShardView:
    process = {"pid": 7, "state": "running"}
    unknown = dict.fromkeys(
        ("floor_ms", "floor_ahead_ms", "behind_ms", "clock_skew_ms", "closing_blocked", "delivered")
    )
    unknown |= dict.fromkeys(("dead_letters", "dead_letters_wait", "copies_held"))
    unknown |= dict.fromkeys(("targets_closed", "timer_topics_resting", "paused_timers"))
    lags = dict.fromkeys(("lag", "lag_ms", "batch_age_ms", "lag_polled_ms", "open_messages"))
    return ShardView.model_validate(
        {
            "shard": 0,
            "role": role,
            "data_dir": "/d",
            "ready": not not_ready,
            "not_ready": not_ready or {},
            "run": None,
            "ingest": {**process, "state": ingest, **lags, "high_water": {}},
            "timer_topics": None,
            "open_targets": {},
            "quotas": {"a": {"per_second": 20, "waiting": waiting}},
            "rates": {"mails": {"rate": "20/m", "waiting": waiting, "wait_ms": 61_000}},
            "dequeue": {**process, **unknown, **dequeue},
            "disk": {
                "free_bytes": 1,
                "min_free_bytes": 1,
                "rows_without_room": rows_without_room,
            },
            "standby": None,
            "copies_signed": True,
            "bounds": {},
            "recovering": None,
            "pending": 0,
            "delivered": 0,
        }
    )


def named(found: ShardView) -> list[str]:
    return [each.name for each in found.conditions]


def test_a_shard_at_work_has_none() -> None:
    assert shard().conditions == []
    assert shard().as_json()["conditions"] == []


def test_each_reason_has_a_sentence_of_its_own() -> None:
    reasons = dict.fromkeys([*REASONS, *WITHOUT_FILES], "why")
    found = conditions.of_reasons(reasons)
    assert len({each.text for each in found}) == len(reasons)
    assert all(each.detail == "why" and each.kind == "bad" for each in found)
    (unknown,) = conditions.of_reasons({"from_a_later_version": "why"})
    assert (unknown.text, unknown.detail) == ("The shard is not ready.", "why")


def test_the_gravest_stand_first_and_causes_before_what_follows() -> None:
    found = shard(
        {"ingest_lag": "7 offsets", "dequeue_not_running": "dequeue is stopped"},
        role="standby",
        waiting=1_234,
        closing_blocked=True,
        clock_skew_ms=61_000,
    )
    assert named(found) == [
        "dequeue_not_running",
        "closing_blocked",
        "ingest_lag",
        "quota_a",
        "rate_mails",
        "standby",
    ]
    texts = [each.text for each in found.conditions]
    ahead = (
        "This host's clock is too far ahead of the brokers', or theirs is unknown: nothing is "
        "delivered."
    )
    assert texts[1] == ahead
    assert texts[3] == ("a has reached its quota of 20 per second: 1,234 messages wait in Kafka.")
    turns = "mails gets 20/m: 1,234 timers wait for their turns, the last one for 1m1s."
    assert texts[4] == turns


def test_what_waits_is_counted() -> None:
    found = shard(
        ingest="paused",
        rows_without_room=1,
        dead_letters_wait=True,
        copies_held=2,
        targets_closed={"bills": "no leader"},
        timer_topics_resting={"later": "mails refused a record"},
        paused_timers={"target mails": "until `resume` (no provider)"},
        state="paused",
    )
    assert named(found) == [
        "disk",
        "dequeue_paused",
        "dead_letters_wait",
        "target_bills",
        "resting_later",
        "paused_target mails",
        "copies_held",
        "ingest_paused",
    ]
    by_name = {each.name: each for each in found.conditions}
    assert by_name["disk"].text == "The disk is too full: 1 message waits for room."
    assert by_name["copies_held"].text.endswith("2 copies wait.")
    assert by_name["target_bills"].detail == "no leader"
    assert by_name["resting_later"].detail == "mails refused a record"
    assert by_name["paused_target mails"].text == (
        "The target mails is paused until `resume` (no provider): its timers wait."
    )
    assert "disk" not in named(shard({"disk_full": "2 messages wait"}, rows_without_room=2))
