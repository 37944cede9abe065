"""How long a command waits for a reply, and its output without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.harness.config_file import small_settings
from tests.harness.local_world import LocalWorld
from tests.harness.timer_rows import P0

from duewheel.cli import replies
from duewheel.cli.main import cli
from duewheel.cli.replies import ReplyWait, end_of_reply_wait
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return small_settings(tmp_path / "data")


@pytest.fixture
def stopped(settings: Settings) -> Settings:
    LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0}).stop()
    return settings


def test_a_start_is_waited_for_and_one_wait_beyond_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = iter([False, True, True, False, False])
    monkeypatch.setattr(replies, "is_starting", lambda _: next(seen))
    goes_on = ReplyWait().goes_on(settings)
    assert [goes_on() for _ in range(4)] == [True, True, True, False]
    assert capsys.readouterr().err.count("the shard is starting: waiting for the reply, 60 s") == 1


def test_a_wait_that_was_asked_for_is_not_extended(settings: Settings) -> None:
    assert ReplyWait(5.0, is_extended=False).goes_on(settings)() is False


@pytest.mark.parametrize(
    ("seconds", "late", "done", "code", "told"),
    [
        (10.0, True, False, 1, "no reply in time: it takes effect without one; ingest is stopped"),
        (10.0, False, False, 1, ""),
        (10.0, False, True, 0, ""),
        (0.0, True, False, 0, ""),
    ],
)
def test_a_missing_reply_is_explained(
    stopped: Settings,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    late: bool,
    done: bool,
    code: int,
    told: str,
) -> None:
    replies = {"timer": stopped.timer.model_copy(update={"reply_topic": "replies"})}
    settings = stopped.model_copy(update=replies)
    assert end_of_reply_wait(settings, ReplyWait(seconds), late=late, done=done) == code
    said = capsys.readouterr().err
    assert told in said if told else not said


def test_without_a_reply_topic_no_reply_is_awaited(
    stopped: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_of_reply_wait(stopped, ReplyWait(), late=False, done=False) == 0
    assert "timer.reply_topic names no topic" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["cancel", "--handle", "h"], ["cancel-matching", "--id", "a"]])
def test_a_wait_is_given_once(words: list[str]) -> None:
    given = [*words, "--wait", "5s", "--no-wait"]
    with pytest.raises(ConfigError, match="either --wait or --no-wait"):
        CliRunner().invoke(cli, given, standalone_mode=False, catch_exceptions=False)
