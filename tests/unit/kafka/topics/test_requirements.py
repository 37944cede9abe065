"""Differences of a topic from its requirements, with brokers that hide some settings."""

from __future__ import annotations

from duewheel.config.keys_and_defaults import ServeSection, TimerSection
from duewheel.config.settings import Settings
from duewheel.kafka.topics.requirements import (
    compare,
    dead_letter_plan,
    service_plans,
    timer_topic_plans,
)

SETTINGS = Settings(timer=TimerSection(topics=("t",)))


def test_a_setting_that_the_broker_does_not_tell_is_not_taken_for_a_difference() -> None:
    (plan,) = timer_topic_plans(SETTINGS, None)
    whole = {r.setting: r.value for r in plan.requirements}
    assert [f.state.value for f in compare(plan, whole, 1)] == ["found"]

    told = {name: value for name, value in whole.items() if name != "retention.bytes"}
    assert [(f.state.value, f.setting, f.wanted) for f in compare(plan, told, 1)] == [
        ("withheld", "retention.bytes", "-1")
    ]
    create_time = {**whole, "message.timestamp.type": "CreateTime"}
    assert [f.setting for f in compare(plan, create_time, 1)] == ["message.timestamp.type"]


def test_the_dead_letters_bound_without_the_timer_topics_one() -> None:
    plan = dead_letter_plan(SETTINGS, [{}, {"max.message.bytes": "1000"}])
    (size,) = [r for r in plan.requirements if r.setting == "max.message.bytes"]
    assert size.bound == 1000 + 4096


def test_the_topic_of_changes_is_made_with_one_order_and_kept_as_its_readers_want() -> None:
    changes = SETTINGS.model_copy(update={"serve": ServeSection(changes_topic="changes")})
    (plan,) = [each for each in service_plans(changes, []) if each.name == "changes"]
    made = {r.setting: r.value for r in plan.requirements}
    assert (plan.partitions, plan.partitions_needed) == (1, False)
    assert (made["retention.ms"], made["cleanup.policy"]) == ("-1", "delete")
    for other in ({"retention.ms": "1000"}, {"cleanup.policy": "compact"}):
        assert [f.state.value for f in compare(plan, made | other, 3)] == ["found"]
