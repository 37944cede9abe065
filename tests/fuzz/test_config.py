"""Settings from a file or the environment that nobody meant: all of them are usable, or refused
with one error that says which are not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duewheel.config.durations import parse_duration_ms
from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError

Change = Callable[[st.DataObject, bytes], bytes]

SAMPLE = """\
[app]
id = "shop"
[kafka]
bootstrap_servers = ["a.example:9092", "b.example:9093"]
client = { request_timeout_ms = 30_000, sasl_plain_password = "hunter2" }
[timer]
topics = ["orders.delayed", "mails.delayed"]
precision_ms = 50
roll_window = "24h"
margin = "1h 30m"
levels = "1s 5s 1.5h"
mapping = { "orders.delayed" = "orders" }
targets = ["mails", "bills.*"]
[ingest]
driver_memory = "2g"
trigger_ms = "100"
[dequeue]
chunk_bytes = "4MiB"
call_deadline = "15s"
[metrics]
dequeue_port = 0
[spark]
spark.sql.shuffle.partitions = 2
"""
SECRET = "hunter2"
VARIABLES = [
    f"DUEWHEEL_{section.upper()}__{key.upper()}"
    for section, field in Settings.model_fields.items()
    for key in getattr(field.annotation, "model_fields", {"NAME": None})
]
VALUES = st.one_of(
    st.sampled_from(
        ["", "24h", "9" * 400 + "d", "9" * 5_000, "1e400", "-1", "0", "a,b", "{", "[[["]
    ),
    st.sampled_from(['{"a":' * 20_000, "[" * 20_000, '{"a": 1}', "\udcff", "inf", "nan", "١h"]),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12),
)


@pytest.fixture(autouse=True, scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No variable and no duewheel.toml of the caller's reaches a test."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in list(os.environ):
            if variable.startswith("DUEWHEEL_"):
                patch.delenv(variable)
        folder = tmp_path_factory.mktemp("nowhere")
        patch.chdir(folder)
        yield


def use(path: Path | None) -> None:
    try:
        settings = load(path)
    except ConfigError as refused:
        shown = str(refused)
    else:
        shown = str(settings.redacted())
        assert settings.wheel.ring > 0
        assert settings.timer.levels_ms
        settings.spark_conf()
        settings.kafka.client_options("producer")
    assert shown
    assert SECRET not in shown


@given(data=st.data())
def test_a_damaged_file(
    tmp_path_factory: pytest.TempPathFactory, damage: Change, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.toml"
    path.write_bytes(damage(data, SAMPLE.encode()))
    use(path)


@given(
    data=st.data(),
    old=st.sampled_from(["50", '"24h"', "1s", "2g", '"4MiB"', '"orders"', "0", '"100"']),
)
def test_a_file_with_another_value(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, old: str
) -> None:
    new = data.draw(
        st.sampled_from(["9" * 400, "9" * 5_000, "[" * 20_000, "1e400", "nan", "-1", "{}", "[]"])
        | st.sampled_from(["1979-05-27", "07:32:00", "true", '"\\u0000"', "'" + "9" * 400 + "d'"])
        | st.builds("'{}'".format, st.text(st.characters(codec="utf-8"), max_size=9))
    )
    path = tmp_path_factory.getbasetemp() / "other.toml"
    path.write_bytes(SAMPLE.replace(old, new, 1).encode())
    use(path)


@given(
    variables=st.dictionaries(st.sampled_from(VARIABLES), VALUES, min_size=1, max_size=3),
    section=st.none() | st.sampled_from(sorted(Settings.model_fields)),
    value=VALUES,
)
def test_any_environment(variables: dict[str, str], section: str | None, value: str) -> None:
    if section is not None:
        variables = {**variables, f"DUEWHEEL_{section.upper()}": value}
    with pytest.MonkeyPatch.context() as patch:
        for name, text in variables.items():
            patch.setenv(name, text)
        patch.setenv("DUEWHEEL_TIMER__SLOTS", variables.get("DUEWHEEL_TIMER__SLOTS", "2000000"))
        use(None)


@given(
    st.text(max_size=12) | st.from_regex(r"\d{1,400}(\.\d{1,20})? ?(ms|s|m|h|d)", fullmatch=True)
)
@example("9" * 400 + "d")
def test_any_duration(text: str) -> None:
    with suppress(ValueError):
        assert 0 <= parse_duration_ms(text) <= 2**53
