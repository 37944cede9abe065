"""The option `--set`: any setting, also a single key of a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from duewheel.cli.main import cli
from duewheel.cli.set_option import Tables, put
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError

pytestmark = pytest.mark.usefixtures("clean_surroundings")

FILE = '[timer]\ntopics = ["orders.delayed"]\ntargets = ["*"]\n[target.mails.eu]\nrate = "1/s"\n'


def checked(tmp_path: Path, *pairs: str) -> Tables:
    """All settings, as `config check` shows them."""
    path = tmp_path / "duewheel.toml"
    path.write_text(FILE)
    flags = [word for pair in pairs for word in ("--set", pair)]
    words = ["config", "check", "--config", str(path), "--output", "json", *flags]
    shown = CliRunner().invoke(cli, words, standalone_mode=False)
    if shown.exception is not None:
        raise shown.exception
    found: Tables = json.loads(shown.stdout)
    return found


def test_the_name_of_a_topic_has_dots_and_may_be_quoted(tmp_path: Path) -> None:
    found = checked(
        tmp_path,
        "target.mails.eu.rate=5/s",
        'target."bills".rate=20/m',
        'timer.topic."orders.delayed".delay=15m',
        "timer.mapping.orders.delayed=orders",
        "dequeue.compression_by_topic.mails.eu=zstd",
    )
    assert found["target"] == {"mails.eu": {"rate": "5/s"}, "bills": {"rate": "20/m"}}
    assert found["timer"]["topic"]["orders.delayed"]["delay"] == "15m"
    assert found["timer"]["mapping"] == {"orders.delayed": "orders"}
    assert found["dequeue"]["compression_by_topic"] == {"mails.eu": "zstd"}


def test_keys_of_tables_that_have_no_topics(tmp_path: Path) -> None:
    found = checked(
        tmp_path,
        "serve.user_headers.proxy=X-Forwarded-User",
        "kafka.client.request_timeout_ms=9000",
        "spark.spark.ui.enabled=true",
        'spark."spark.ui.port"=4050',
    )
    assert found["serve"]["user_headers"] == {"proxy": "X-Forwarded-User"}
    assert found["kafka"]["client"] == {"request_timeout_ms": "9000"}
    assert found["spark"] == {"spark.ui.enabled": "true", "spark.ui.port": "4050"}


def test_each_table_of_a_section_takes_single_keys() -> None:
    for section, field in Settings.model_fields.items():
        for key, own in getattr(field.annotation, "model_fields", {}).items():
            tables: Tables = {}
            put(tables, f"{section}.{key}.a=b")
            below = {key: {"a": "b"}} if own.default_factory is dict else {f"{key}.a": "b"}
            assert tables == {section: below}


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        (["timer.topics"], "--set timer.topics: write it as section.key=value"),
        (["timer=a"], "--set timer=a: write it as section.key=value"),
        (["target.mails=5/s"], r"target\.mails: must be a table \(flags\)"),
        (["timers.topics=a"], 'timers: there is no such key; did you mean "timer"'),
        (["kafka.client_id.a=b"], r"kafka\.client_id\.a: there is no such key"),
        (
            ['timer.mapping={"a": "b"}', "timer.mapping.c=d"],
            r"--set timer\.mapping\.c: another --set has the whole of its table",
        ),
        (
            ["kafka.client.a=1", "kafka.client={}"],
            r"--set kafka\.client: another --set has a key of its table",
        ),
    ],
)
def test_what_has_no_place_is_refused(tmp_path: Path, pairs: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        checked(tmp_path, *pairs)
