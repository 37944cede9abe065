"""The timer topic that a request or a recall handle names."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.config_file import small_settings

from duewheel.client.handle import RecallHandle
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.ops.named_timer_topic import decoded_handle, narrowed, timer_topic_of
from duewheel.schemas.topic_scope import ALL_TOPICS, TopicScope


def settings_of(tmp_path: Path, **timer: object) -> Settings:
    settings = small_settings(tmp_path)
    return settings.model_copy(update={"timer": settings.timer.model_copy(update=timer)})


def test_without_a_name_it_is_the_first(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, topics=("orders", "mails"))
    assert timer_topic_of(settings, None) == "orders"
    assert timer_topic_of(settings, "mails") == "mails"


def test_a_name_that_is_none_gets_the_nearest_one_as_a_hint(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, topics=("orders", "mails"))
    with pytest.raises(ConfigError, match=r'"order" is no timer topic of these settings.*orders'):
        timer_topic_of(settings, "order")


def test_a_filter_narrows_a_scope_and_never_widens_it(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, topics=("orders.1", "mails"), topics_pattern="orders.*")
    own = TopicScope(("orders.?",))
    assert narrowed(settings, own, None) == own
    for scope in (own, ALL_TOPICS):
        one = narrowed(settings, scope, "orders.1")
        assert "orders.1" in one and "orders.2" not in one
    assert "mails" in narrowed(settings, ALL_TOPICS, "mails")
    beyond = narrowed(settings, own, "mails")
    assert not any(topic in beyond for topic in ("mails", "orders.1", "a"))
    with pytest.raises(ConfigError, match="is no timer topic"):
        narrowed(settings, own, "orders.*")  # would be a pattern that has `orders.10`


def test_settings_without_a_listed_topic_need_a_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"timer\.topics names none"):
        timer_topic_of(settings_of(tmp_path, topics=()), None)


def test_a_handle_of_another_app_is_refused(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, topics=("orders",))
    own, other = (
        RecallHandle(topic, 3, 17, 1_800_000_000_000, "order 8821")
        for topic in ("orders", "others")
    )
    assert decoded_handle(settings, own.encode()) == own
    with pytest.raises(InvalidTimer, match='names "others", which is no timer topic'):
        decoded_handle(settings, other.encode())
