"""The options of `recover`, which are checked before Kafka is asked."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from click.testing import CliRunner, Result

from duewheel.api.recovery import MirrorRecovered
from duewheel.cli.main import cli
from duewheel.errors import ConfigError
from duewheel.ops import connection
from duewheel.ops.recovery import from_mirror


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("orders", "write it as TOPIC=INSTANT"),
        ("orders=", "write it as TOPIC=INSTANT"),
        ("=2027-01-15T08:00Z", "write it as TOPIC=INSTANT"),
        ("orders=soon", "'soon' is no instant: give epoch ms"),
        ("orders=2027-01-15T08:00", "has no zone"),
    ],
)
def test_a_topic_without_an_instant_is_named_with_its_option(given: str, why: str) -> None:
    words = ["recover", "--from-mirror", "A.", "--delivered-before", given]
    ended = CliRunner().invoke(cli, words)
    assert ended.exit_code == ConfigError.exit_code
    assert f"Invalid value for '--delivered-before': {given}: " in ended.output
    assert why in ended.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--dry-run", "--delivered-before", "orders=1"], "--delivered-before needs --from-mirror"),
        ([], "a lost cluster needs --from-mirror"),
        (
            [
                *("--from-mirror", "A.", "--delivered-before", "orders.delayed=1"),
                *("--delivered-before", "orders.delayed=2"),
            ],
            "one instant for each timer topic",
        ),
    ],
)
def test_options_that_need_the_mirror_name_it(
    words: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "require_kafka", lambda _: nullcontext())
    given = ["recover", *words, "--bootstrap-servers", "localhost:1"]
    given += ["--set", "timer.topics=orders.delayed"]
    with pytest.raises(ConfigError, match=why):
        CliRunner().invoke(cli, given, standalone_mode=False, catch_exceptions=False)


_CLEAN: dict[str, Any] = {"refused": {}, "not_taken": {}, "left_out": {}}
_CLEAN |= {"unclear_cancels": 0, "unclear_windows": 0, "written": 7}


def recovered(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Result:
    """The end of a recovery with this result."""
    result = MirrorRecovered.model_construct(**_CLEAN | found)
    monkeypatch.setattr(from_mirror, "recover", lambda *_, **__: result)
    monkeypatch.setattr(connection, "require_kafka", lambda _: nullcontext())
    words = ["recover", "--from-mirror", "A.", "--bootstrap-servers", "localhost:1"]
    words += ["--set", "timer.topics=orders.delayed"]
    return CliRunner().invoke(cli, words, standalone_mode=False)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ({}, 0),
        ({"refused": {"invalid_key": 1}}, 1),
        ({"not_taken": {"A.orders.delayed-1": 469}}, 1),
        ({"unclear_cancels": 1}, 1),
        ({"unclear_windows": 1}, 1),
    ],
)
def test_a_recovery_that_leaves_something_out_ends_with_1(
    found: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = recovered(found, monkeypatch)
    assert ended.return_value == code, ended.output
    for name in found:
        assert name in ended.output


def test_schedules_that_are_left_out_are_to_be_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    without = recovered({"left_out": {"invalid_key": 2}}, monkeypatch)
    assert "schedule" not in without.output
    ended = recovered({"left_out": {"recurring": 3}}, monkeypatch)
    assert "set them again" in ended.stderr
    assert ended.return_value == 0
