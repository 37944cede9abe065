"""Options of `show` that contradict one another are refused."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from duewheel.cli.main import cli
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
