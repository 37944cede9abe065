"""Settings that name topics: tables of their own, a pattern, which targets are open; in every form
in which settings come, and what of them contradicts.
"""

from __future__ import annotations

import json
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.harness.other_values import other_values
from tests.harness.source_table import read_records

from duewheel import factory
from duewheel.cli.main import cli
from duewheel.config.keys_and_defaults import RECURRING_QUOTA, TimerTopic
from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError
from duewheel.schemas.request.parser import parse
from duewheel.schemas.request.topic_settings import CHOICES, TopicContract
from duewheel.wheel.policies.expiry import Expiry

pytestmark = pytest.mark.usefixtures("clean_surroundings")

LISTED = '[timer]\ntopics = ["orders.delayed", "mails"]\n'
PATTERN = "[timer]\ntopics_pattern = '.*\\.delayed'\n"


HEADER: dict[str, pa.DataType] = {"key": pa.string(), "value": pa.binary()}
FIELDS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct(list(HEADER.items()))),
}
SOURCE = pa.schema(FIELDS)


def loaded(tmp_path: Path, text: str, overrides: dict[str, Any] | None = None) -> Settings:
    path = tmp_path / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, overrides)


def contracts(settings: Settings) -> dict[str, TopicContract]:
    return dict(factory.contract(settings).topics)


# Every key of a table, each with another value than its default.
OTHERS = other_values(TimerTopic)
LINES = {key: f"{key} = {json.dumps(value)}\n" for key, value in OTHERS.items()}
ALL_KEYS = "\n" + "".join(LINES.values())
TOLD = TimerTopic.model_validate(OTHERS).contract
OF_INGEST = {field.name.removesuffix("_ms") for field in fields(TopicContract)}


def test_all_keys_are_given_here_and_none_by_its_default() -> None:
    given, default = TimerTopic.model_validate(OTHERS), TimerTopic()
    for key in TimerTopic.model_fields:
        assert getattr(given, key) != getattr(default, key), key
    for field in fields(TopicContract):
        assert getattr(TOLD, field.name) != field.default, field.name
    assert (TOLD.target, TOLD.delay_ms, TOLD.max_delay_ms) == ("orders", 900_000, 3_600_000)


@pytest.mark.parametrize("key", OTHERS)
def test_each_key_reaches_a_part(key: str) -> None:
    """By itself, or beside the others."""

    def parts(table: dict[str, Any]) -> list[object]:
        timer = {"topics": ["mails"], "receipts_topic": "receipts", "topic": {"mails": table}}
        settings = load(None, {"timer": timer})
        ours = [settings.by_topic(name) for name in ("quota_per_second", "suite")]
        return [*ours, factory.receipts(settings), factory.dequeue_config(settings)]

    alone, beside = {key: OTHERS[key]}, {name: OTHERS[name] for name in OTHERS if name != key}
    assert parts(alone) != parts({}) or parts(OTHERS) != parts(beside)


def test_a_topic_of_recurring_timers_has_a_quota_by_default(tmp_path: Path) -> None:
    settings = loaded(tmp_path, LISTED + '[timer.topic."orders.delayed"]\nrecurring = true\n')
    assert settings.by_topic("quota_per_second") == {"orders.delayed": RECURRING_QUOTA}
    own = "recurring = true\nquota_per_second = 100_000\n"
    settings = loaded(tmp_path, LISTED + '[timer.topic."orders.delayed"]\n' + own)
    assert settings.by_topic("quota_per_second") == {"orders.delayed": 100_000}


def test_values_in_the_parts(tmp_path: Path) -> None:
    settings = loaded(tmp_path, LISTED + f'[timer.topic."orders.delayed"]{ALL_KEYS}')
    name, receipts = "orders.delayed", factory.receipts(settings)
    assert settings.by_topic("quota_per_second") == {name: 7}
    assert Expiry({name: 7_200_000}, frozenset([name])) in factory.dequeue_config(settings).policies
    assert receipts.without == receipts.lateness_headers == {name}
    assert factory.dequeue_config(settings).lateness_p99_ms == {name: 250}


@pytest.mark.parametrize("name", ['"orders.delayed"', "orders.delayed"])
def test_a_table_for_one_topic_with_its_name_quoted_or_not(tmp_path: Path, name: str) -> None:
    settings = loaded(tmp_path, LISTED + f"[timer.topic.{name}]{ALL_KEYS}")
    assert contracts(settings) == {"orders.delayed": TOLD}


def test_a_topic_whose_name_begins_with_anothers(tmp_path: Path) -> None:
    text = '[timer]\ntopics = ["orders", "orders.delayed"]\n'
    text += '[timer.topic.orders]\ntarget = "a"\n[timer.topic.orders.delayed]\ntarget = "b"\n'
    found = contracts(loaded(tmp_path, text))
    assert found == {
        "orders": TopicContract(target="a", targets=()),
        "orders.delayed": TopicContract(target="b", targets=()),
    }


def test_from_the_environment_and_from_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "DUEWHEEL_TIMER__TOPIC",
        '{"orders.delayed": {"target": "orders", "delay": "15m"}, "mails": {"headers": "etf1"}}',
    )
    monkeypatch.setenv("DUEWHEEL_TIMER__TARGETS", "orders, mails.*")
    found = loaded(tmp_path, LISTED)
    opened = ("orders", "mails.*")
    assert contracts(found) == {
        "orders.delayed": TopicContract(target="orders", targets=opened, delay_ms=900_000),
        "mails": TopicContract(headers="etf1", id="key", null_value="cancel", targets=opened),
    }
    assert found.timer.targets == opened

    monkeypatch.delenv("DUEWHEEL_TIMER__TOPIC")
    (tmp_path / "duewheel.toml").write_text(
        LISTED + '[timer.topic.orders.delayed]\ntarget = "orders"\nid = "key"\n'
    )
    flags = [
        *("--set", "timer.topic.orders.delayed.delay=15m"),
        *("--set", 'timer.topic."mails".past_due=dead-letter'),
        *("--set", "timer.topic.orders.delayed.targets=mail,bills.*"),
        *("--set", "timer.targets=*.open"),
    ]
    shown = CliRunner().invoke(cli, ["config", "check", "--output", "json", *flags])
    assert shown.exit_code == 0, shown.output
    timer = json.loads(shown.stdout)["timer"]
    assert timer["targets"] == ["*.open"]
    assert json.loads(shown.stdout)["open_targets"] == {
        "orders.delayed": ["orders", "mail", "bills.*"],
        "mails": ["*.open"],
    }
    told = {"target": "orders", "id": "key", "targets": ["mail", "bills.*"], "delay": "15m"}
    assert timer["topic"]["orders.delayed"] == TimerTopic().model_dump(mode="json") | told
    assert timer["topic"]["mails"]["past_due"] == "dead-letter"


def test_what_is_shown_can_be_loaded_again(tmp_path: Path) -> None:
    settings = loaded(tmp_path, PATTERN + f'[timer.topic."orders.delayed"]{ALL_KEYS}')
    assert Settings(**settings.redacted()).redacted() == settings.redacted()


def test_the_choices_are_those_of_the_contract() -> None:
    for key, choices in CHOICES.items():
        assert typing.get_args(TimerTopic.model_fields[key].annotation) == choices
        assert TimerTopic.model_fields[key].default == choices[0]
    assert TimerTopic.model_validate({}).contract == TopicContract()


def test_the_mapping_is_another_word_for_the_target(tmp_path: Path) -> None:
    text = LISTED + 'mapping = { "orders.delayed" = "orders" }\n'
    text += '[timer.topic."orders.delayed"]\ndelay = "1s"\n'
    assert contracts(loaded(tmp_path, text)) == {
        "orders.delayed": TopicContract(target="orders", targets=(), delay_ms=1_000)
    }


TABLE = '[timer.topic."orders.delayed"]\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[timer]\ntopics_pattern = '\\w+'\n",
            r"timer.topics_pattern: '\\w' in '^(?:\\w+)$' does not mean the same everywhere",
        ),
        ('[timer]\ntopics_pattern = "("\n', "timer.topics_pattern: '^(?:()$' is no regular expr"),
        (
            LISTED + '[timer.topic."orders.delay"]\n',
            'timer.topic.orders.delay: is no timer topic; did you mean "orders.delayed"?',
        ),
        (
            LISTED + TABLE + "targt = 1\n",
            'timer.topic.orders.delayed.targt: there is no such key; did you mean "target"?',
        ),
        (
            LISTED + TABLE + 'headers = "rocketmq"\n',
            "timer.topic.orders.delayed.headers: Input should be 'native', 'etf1'",
        ),
        (
            LISTED + TABLE + 'headers = "etf1"\nid = "header"\n',
            'timer.topic.orders.delayed.id: "etf1" messages have no ids but their keys',
        ),
        (
            LISTED + TABLE + 'headers = "karafka"\nnull_value = "message"\n',
            'timer.topic.orders.delayed.null_value: "karafka" cancels by null values',
        ),
        (
            LISTED + 'mapping = { "orders.delayed" = "a" }\n' + TABLE + 'target = "b"\n',
            'timer.topic.orders.delayed.target: is "b", timer.mapping says "a"',
        ),
        (
            LISTED + TABLE + 'delay = "41d"\n',
            "timer.topic.orders.delayed.delay: is longer than timer.max_delay",
        ),
        (
            LISTED + TABLE + 'max_delay = "41d"\n',
            "timer.topic.orders.delayed.max_delay: is longer than timer.max_delay, which holds",
        ),
        (
            LISTED + TABLE + 'delay = "2h"\nmax_delay = "1h"\n',
            "timer.topic.orders.delayed.delay: is longer than max_delay: each message",
        ),
        (
            LISTED + TABLE + 'delay = "0s"\npast_due = "dead-letter"\n',
            "timer.topic.orders.delayed.delay: is past due at once",
        ),
        (
            LISTED + TABLE + 'target = "mails"\n',
            'timer.topic.orders.delayed.target: "mails" is one of duewheel\'s own topics',
        ),
        (
            LISTED + 'targets = ["orders", "a b"]\n',
            "timer.targets.1: 'a b' is neither a topic's name nor a pattern",
        ),
        (
            LISTED + TABLE + 'targets = "a|b"\n',
            "timer.topic.orders.delayed.targets.0: 'a|b' is neither a topic's name nor a pattern",
        ),
        (
            LISTED + 'targets_allow = ["orders"]\n',
            'timer.targets_allow: there is no such key; did you mean "targets"?',
        ),
        (
            PATTERN + 'mapping = { "a.delayed" = "b.delayed" }\n',
            'timer.mapping: "b.delayed" matches timer.topics_pattern: it would be read as a timer',
        ),
        (PATTERN + 'mapping = { "a.late" = "b" }\n', 'timer.mapping: "a.late" is no timer topic'),
    ],
)
def test_refused_with_key_reason_and_source(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert expected in str(caught.value)
    assert "settings.toml)" in str(caught.value)


def test_a_list_or_a_pattern_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"timer\.topics: name at least one, or give timer\.topi"):
        loaded(tmp_path, "[timer]\nslots = 3_000_000\n")


def test_a_pattern_closes_all_that_it_matches_to_timers(tmp_path: Path) -> None:
    """Whether there is such a topic or not: what a message means does not depend on that."""
    settings = loaded(tmp_path, PATTERN)
    refused = factory.contract(settings).refused_targets(
        None, ["a.delayed", "a", "__x", "duewheel.state"]
    )
    assert {name: rule.code for name, rule in refused.items()} == dict.fromkeys(
        ["a.delayed", "__x", "duewheel.state"], "forbidden_target"
    )


def test_targets_are_closed_unless_the_topic_or_a_list_names_them(tmp_path: Path) -> None:
    """A list of its own replaces the common one; its own target is always open."""
    names = ["orders", "orders.eu", "mail2", "mail", "bills"]

    def opened(text: str, topic: str) -> list[str]:
        contract = factory.contract(loaded(tmp_path, LISTED + text))
        refused = contract.refused_targets(topic, names)
        assert {rule.code for rule in refused.values()} <= {"target_not_allowed"}
        return [name for name in names if name not in refused]

    assert opened("", "mails") == []
    assert opened('targets = ["*"]\n', "mails") == names
    lists = 'targets = ["orders*", "mail?"]\nmapping = { mails = "bills" }\n' + TABLE
    assert opened(lists, "mails") == ["orders", "orders.eu", "mail2", "bills"]
    assert opened(lists, "orders.delayed") == ["orders", "orders.eu", "mail2"]
    assert opened(lists + 'targets = ["mail"]\n', "orders.delayed") == ["mail"]
    assert opened(lists + 'targets = []\ntarget = "orders"\n', "orders.delayed") == ["orders"]


def test_a_copy_is_judged_by_the_lists_of_its_own_time(tmp_path: Path) -> None:
    """A timer that rolls comes in again; one that was accepted before is refused then."""
    headers = [
        {"key": key, "value": value}
        for key, value in {
            "TIMER_DELIVER_MS": b"1800000000000",
            "REAL_TOPIC": b"orders",
            "TIMER_ORIGIN": b"3",
            "TIMER_ROLL_TIMES": b"1",
        }.items()
    ]
    row = {
        "topic": "mails",
        "partition": 0,
        "offset": 7,
        "timestamp": 1_799_999_000_000_000,
        "key": b"k",
        "value": b"v",
        "headers": headers,
    }
    table = pa.Table.from_pylist([row], SOURCE)
    for named, codes in (("order?", {}), ("bills", {"target_not_allowed": 1})):
        contract = factory.contract(loaded(tmp_path, LISTED + f'targets = ["{named}"]\n'))
        batch = parse(read_records(table), contract)
        assert batch.origin_offset.tolist() == [3 if not codes else 7]
        assert batch.rejections() == codes


@pytest.mark.parametrize(
    ("text", "decides"),
    [
        ('targets = ["orders"]\n', True),
        ("topics_pattern = 'later.*'\n", True),
        *((f'[timer.topic."mails"]\n{line}', key in OF_INGEST) for key, line in LINES.items()),
    ],
)
def test_what_decides_a_message_is_in_the_progress(
    tmp_path: Path, text: str, decides: bool
) -> None:
    before, after = (
        json.loads(json.dumps(factory.slot_values(loaded(tmp_path, LISTED + each))))
        for each in ("", text)
    )
    assert (before != after) == decides
    assert before["rules"] == after["rules"]
