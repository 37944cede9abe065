"""Problems of a request name the options of its command."""

from __future__ import annotations

import re

import pytest

from duewheel.api.requests import NewTimer, TimerFilter, TimerQuery
from duewheel.api.schedules import NewSchedule
from duewheel.cli.main import cli
from duewheel.cli.request_options import request_of
from duewheel.errors import ConfigError


def test_a_problem_names_the_option_as_it_is_written() -> None:
    with pytest.raises(ConfigError, match=r"^--header: "):
        request_of(NewTimer, {"topic": "a", "delay": "1s", "headers": ["=no name"]})
    with pytest.raises(ConfigError, match=r"^--from: "):
        request_of(TimerFilter, {"since": "yesterday"})
    both = {"target": "a", "value": "v", "cron": "0 8 * * *", "every": "1h"}
    with pytest.raises(ConfigError, match="give either --cron or --every"):
        request_of(NewSchedule, both)
    with pytest.raises(ConfigError, match="--deliver-at, --delay and --level"):
        request_of(NewTimer, {"topic": "a", "value": "v"})


def test_a_key_of_any_length_is_searched_for() -> None:
    key = "k" * 5_000  # longer than the head of an HTTP request permits
    assert request_of(TimerFilter, {"key": key}).key_octets == key.encode()
    with pytest.raises(ConfigError, match="4096"):
        TimerQuery.of({"key": key})


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ([], "give exactly one of --deliver-at, --delay and --level"),
        (
            ["--delay", "1s", "--level", "3"],
            "give exactly one of --deliver-at, --delay and --level",
        ),
        (["--deliver-at", "soon"], "--deliver-at: 'soon' is no instant"),
        (["--deliver-at", "2027-01-15T08:00"], "--deliver-at: 2027-01-15 08:00:00 has no zone"),
        (["--delay", "90"], "--delay: "),
    ],
)
def test_commands_name_their_options(times: list[str], reason: str) -> None:
    for command in (
        ["send", "--target", "orders", "--value", "v"],
        ["reschedule", "--handle", "h"],
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(reason)}"):
            cli([*command, *times], standalone_mode=False)


@pytest.mark.parametrize(
    ("command", "places"), [("cancel", "key or partition"), ("reschedule", "key")]
)
def test_a_hint_names_what_the_command_takes(command: str, places: str) -> None:
    for given, reason in (
        ([], f"give either a handle, or an id with the timers' {places}"),
        (["--id", "7"], f"an id needs the timers' {places}: it counts within one partition"),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(reason)}$"):
            cli([command, *given], standalone_mode=False)
