"""docs/configuration.md lists the settings that `reconfigure` changes, as the code has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.harness.other_values import other_values

from duewheel import factory
from duewheel.config.keys_and_defaults import TimerSection, TimerTopic
from duewheel.config.settings import Settings, load

ROW = re.compile(r"^\| (.*) \| \[`duewheel reconfigure`\]", re.MULTILINE)
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text("utf-8")
NAME, OTHER = "orders.delayed", "bills.delayed"
CHANGES = "serve.changes_topic"
BASE: dict[str, Any] = {"topics": [NAME], "targets": ["orders"], "receipts_topic": "receipts"}
# Another valid value of each key, where only that key differs.
TIMER: dict[str, Any] = {
    "topics": [NAME, OTHER],
    "topics_pattern": "more[.].*",
    "precision_ms": 60,
    "timeline": "rocksdb",
    "slots": 3_000_000,
    "roll_window": "12h",
    "margin": "2h",
    "max_delay": "39d",
    "longest_outage": "6d",
    "dead_letter_topic": "letters",
    "state_topic": "state",
    "reply_topic": "replies",
    "receipts_topic": "receipts2",
    "levels": ["1s"],
    "mapping": {NAME: "orders"},
    "targets": ["bills"],
    "topic": {NAME: {"delay": "1m"}},
}


def settings(**timer: Any) -> Settings:
    return load(None, {"timer": {**BASE, **timer}})


def deciding(changed: dict[str, Settings]) -> set[str]:
    """The keys that change the values in the progress."""
    usual = factory.slot_values(settings())
    return {key for key, other in changed.items() if factory.slot_values(other) != usual}


def listed(text: str) -> set[str]:
    return {name.removeprefix("timer.") for name in re.findall(r"`([\w.]+)`", text)}


def test_the_keys_are_those_of_the_configuration() -> None:
    assert TIMER.keys() == set(TimerSection.model_fields)


def test_the_row_has_the_settings_that_reconfigure_takes() -> None:
    (row,) = ROW.findall(PAGE)
    all_timers, _, of_a_topic = row.partition("; of a timer topic")
    found = deciding({key: settings(**{key: other}) for key, other in TIMER.items()})
    assert listed(all_timers) == found - {"precision_ms", "state_topic", "topic"} | {CHANGES}
    with_changes = load(None, {"timer": BASE, "serve": {"changes_topic": "changes"}})
    assert deciding({CHANGES: with_changes}) == {CHANGES}
    others = other_values(TimerTopic)
    each = {key: settings(topic={NAME: {key: other}}) for key, other in others.items()}
    assert listed(of_a_topic) == deciding(each)
