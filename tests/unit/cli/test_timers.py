"""The options of `list` and `show`: those that contradict one another, and bounds."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from duewheel.api.requests import NewTimer, TimerFilter, TimerQuery
from duewheel.cli.main import cli
from duewheel.cli.request_options import request_of
from duewheel.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "give either --handle or --id"),
        (["--handle", "h", "--id", "a"], "give either --handle or --id"),
        (["--handle", "h", "--key", "k"], "a handle names one timer"),
    ],
)
def test_a_timer_is_named_once(
    options: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUEWHEEL_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("DUEWHEEL_TIMER__TOPICS", "timers")
    ended = CliRunner().invoke(cli, ["show", *options], standalone_mode=False)
    assert isinstance(ended.exception, ConfigError)
    assert reason in str(ended.exception)


def test_a_key_of_any_length_is_searched_for() -> None:
    key = "k" * 5_000  # longer than the head of an HTTP request permits
    assert request_of(TimerFilter, {"key": key}).key_octets == key.encode()
    with pytest.raises(ConfigError, match="4096"):
        TimerQuery.of({"key": key})


def test_a_problem_names_the_option_as_it_is_written() -> None:
    with pytest.raises(ConfigError, match=r"^--header: "):
        request_of(NewTimer, {"topic": "a", "delay": "1s", "headers": ["=no name"]})
    with pytest.raises(ConfigError, match=r"^--from: "):
        request_of(TimerFilter, {"since": "yesterday"})
