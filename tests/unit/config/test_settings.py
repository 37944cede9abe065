"""Settings: sources and their order, refusals with key and source, secrets that never show.

Also of config/contradictions.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from duewheel import factory
from duewheel.config.durations import format_duration_ms, parse_duration_ms
from duewheel.config.settings import Settings, load
from duewheel.config.values import is_secret, parse_size_bytes
from duewheel.errors import ConfigError
from duewheel.schemas.header_names import LEVELS_MS

pytestmark = pytest.mark.usefixtures("clean_surroundings")

MINIMAL = '[timer]\ntopics = ["orders.delayed"]\n'


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(config_file: Path | None = None, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(config_file, overrides)
    return str(caught.value)


def test_defaults_are_the_documented_ones(tmp_path: Path) -> None:
    settings = load(write(tmp_path, MINIMAL))
    assert settings.timer.topics == ("orders.delayed",)
    assert settings.dead_letter_topic == "duewheel.dead-letter"
    assert settings.state_topic == "duewheel.state"
    assert settings.wheel.precision_ms == 50
    assert settings.wheel.slots == 2_097_152
    assert settings.wheel.window_ms == 86_400_000
    assert settings.wheel.margin_ms == 3_600_000
    assert settings.ingest.trigger_ms == 100
    assert settings.ingest.max_offsets_per_trigger == 300_000
    assert len(settings.timer.levels_ms) == 18
    assert settings.timer.levels_ms[0] == 1_000
    assert settings.timer.levels_ms[13:] == (600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000)
    assert settings.storage.data_dir == Path("duewheel-data")


def test_levels_are_written_as_in_rocketmq() -> None:
    text = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    every_unit_ms = (1_000, 240_000, 10_800_000, 172_800_000)
    for levels, expected_ms in ((text, LEVELS_MS), (" 1s 4m\n3h 2d ", every_unit_ms)):
        settings = load(None, {"timer": {"topics": "t", "levels": levels}})
        assert settings.timer.levels_ms == expected_ms


@pytest.mark.parametrize("levels", ["", "1", "s", "-1s", "1w", "1s 2", "²s"])
def test_what_is_no_table_of_levels_is_refused(levels: str) -> None:
    with pytest.raises(ConfigError, match=r"timer\.levels"):
        load(None, {"timer": {"topics": "t", "levels": levels}})


def test_flags_beat_environment_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        tmp_path,
        MINIMAL
        + '[kafka]\nbootstrap_servers = "file:9092"\n'
        + "[ingest]\ntrigger_ms = 200\nmax_offsets_per_trigger = 7\n",
    )
    monkeypatch.setenv("DUEWHEEL_KAFKA__BOOTSTRAP_SERVERS", "one:9092,two:9093")
    monkeypatch.setenv("DUEWHEEL_INGEST__TRIGGER_MS", "300ms")
    settings = load(path, {"ingest": {"trigger_ms": 400, "max_offsets_per_trigger": None}})
    assert settings.kafka.servers == "one:9092,two:9093"
    assert settings.ingest.trigger_ms == 400
    assert settings.ingest.max_offsets_per_trigger == 7


def test_the_file_is_found_by_variable_and_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "duewheel.toml").write_text('[timer]\ntopics = ["here"]\n')
    assert load().timer.topics == ("here",)
    monkeypatch.setenv("DUEWHEEL_CONFIG", str(write(tmp_path, MINIMAL)))
    assert load().timer.topics == ("orders.delayed",)
    monkeypatch.setenv("DUEWHEEL_CONFIG", str(tmp_path / "absent.toml"))
    assert "absent.toml cannot be read" in refusal()
    monkeypatch.setenv("DUEWHEEL_CONFIG", "absent.toml")
    assert f"{tmp_path / 'absent.toml'} cannot be read" in refusal()


def test_everything_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUEWHEEL_TIMER__TOPICS", "a.delayed, b.delayed")
    monkeypatch.setenv("DUEWHEEL_TIMER__MAPPING", '{"a.delayed": "a"}')
    monkeypatch.setenv("DUEWHEEL_DEQUEUE__COMPRESSION_BY_TOPIC", '{"a": "lz4"}')
    monkeypatch.setenv("DUEWHEEL_TIMER__LEVELS", "1s 1m 1h30m")
    monkeypatch.setenv("DUEWHEEL_KAFKA__CLIENT__REQUEST_TIMEOUT_MS", "5000")
    monkeypatch.setenv("DUEWHEEL_KAFKA__CLIENT__SASL_PLAIN_PASSWORD", "0123")
    monkeypatch.setenv("DUEWHEEL_SPARK", '{"spark.ui.enabled": true}')
    monkeypatch.setenv("DUEWHEEL_DEQUEUE__CHUNK_BYTES", "4MiB")
    monkeypatch.setenv("DUEWHEEL_CACHE_DIR", "elsewhere")
    settings = load()
    assert settings.timer.topics == ("a.delayed", "b.delayed")
    assert settings.timer.mapping == {"a.delayed": "a"}
    assert settings.timer.levels_ms == (1_000, 60_000, 5_400_000)
    options = settings.kafka.client_options("consumer")
    assert options["request_timeout_ms"] == 5000
    assert options["sasl_plain_password"] == "0123"
    assert settings.spark_conf() == {"spark.ui.enabled": "true"}
    assert settings.dequeue.chunk_bytes == 4 << 20
    assert settings.dequeue.compression_by_topic == {"a": "lz4"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[timers]\ntopics = ["a"]', 'timers: there is no such key; did you mean "timer"?'),
        (
            MINIMAL + '[kafka]\nbootstrap_server = "a:1"',
            'kafka.bootstrap_server: there is no such key; did you mean "bootstrap_servers"?',
        ),
        ("", "timer: must be set"),
        ("[timer]\ntopics = []", "timer.topics: name at least one"),
        ('[timer]\ntopics = ["a b"]', '"a b" is no topic name'),
        ('[timer]\ntopics = ["a", "a"]', "timer.topics: names a topic twice"),
        (
            '[timer]\ntopics = ["a"]\ndead_letter_topic = "a"',
            'timer.dead_letter_topic: "a" is a timer topic',
        ),
        (
            '[timer]\ntopics = ["a"]\ndead_letter_topic = "b"\nstate_topic = "b"',
            "timer.state_topic: is the dead-letter topic",
        ),
        (
            '[timer]\ntopics = ["orders.delayed"]\nmapping = { "order.delayed" = "orders" }',
            'is no timer topic; did you mean "orders.delayed"?',
        ),
        (
            '[timer]\ntopics = ["a"]\nmapping = { "a" = "duewheel.state" }',
            'timer.mapping: "duewheel.state" is one of duewheel\'s own topics',
        ),
        (
            '[timer]\ntopics = ["a"]\nreply_topic = "r"\nmapping = { "a" = "r" }',
            'timer.mapping: "r" is one of duewheel\'s own topics',
        ),
        ('[timer]\ntopics = ["a"]\nreply_topic = "a"', 'timer.reply_topic: "a" is a timer topic'),
        (
            '[timer]\ntopics = ["a"]\nreply_topic = "duewheel.state"',
            "timer.reply_topic: is the dead-letter or the state topic",
        ),
        ('[timer]\ntopics = ["a"]\nreceipts_topic = "a"', 'receipts_topic: "a" is a timer topic'),
        (
            '[timer]\ntopics = ["a"]\nreply_topic = "r"\nreceipts_topic = "r"',
            "timer.receipts_topic: is another topic of duewheel's own",
        ),
        (
            '[timer]\ntopics = ["a"]\nreceipts_topic = "r"\nmapping = { "a" = "r" }',
            'timer.mapping: "r" is one of duewheel\'s own topics',
        ),
        (
            MINIMAL + "roll_window = 24",
            'timer.roll_window: a duration needs its unit, such as "24h"',
        ),
        (MINIMAL + 'roll_window = "24 hours"', "is no duration"),
        (MINIMAL + 'roll_window = "28h 30m"', "set timer.slots from 2_124_000 to"),
        (MINIMAL + "precision_ms = 0", "timer.precision_ms: Input should be greater than"),
        (MINIMAL + "precision_ms = 1000\nslots = 2000000", "must be below 2**30 = 1_073_741_824"),
        (MINIMAL + "[shard]\nindex = 1", "shard.index: must be below shard.count = 1"),
        (MINIMAL + '[kafka]\nbootstrap_servers = "broker"', '"broker" is no host:port'),
        (
            MINIMAL + "[kafka.client]\nacks = 1",
            "kafka.client.acks: is set by duewheel",
        ),
        (
            MINIMAL + "[kafka.client]\nrequest_timeout = 1",
            'clients; did you mean "request_timeout_ms"?',
        ),
        (MINIMAL + "[kafka.producer]\nlinger_ms = 5", "kafka.producer: there is no such key"),
        (MINIMAL + '[spark]\n"spark.remote" = "local"', "Spark Connect runs the sink in another"),
        (MINIMAL + '[spark]\n"spark.master" = "spark://x:7077"', "set ingest.spark_master"),
        (MINIMAL + '[ingest]\nspark_master = "yarn"', "ingest.spark_master: String should match"),
        (MINIMAL + '[ingest]\nspark_master = "k8s://x"', "spark.kubernetes.container.image"),
        (MINIMAL + '[ingest]\nshared_folder = "/mnt"', "ingest.spark_master is local"),
        (MINIMAL + "[spark]\nexecutor.cores = 2", "Spark's options begin with `spark.`"),
        (MINIMAL + '[dequeue]\nchunk_bytes = "4 potatoes"', '"4 potatoes" is no size'),
        (MINIMAL + '[dequeue]\nhot_slot = "refuse"', "dequeue.hot_slot: Input should be 'none'"),
        (
            MINIMAL + '[dequeue]\nhot_slot = "spread"\nhot_slot_window = "25h"',
            "dequeue.hot_slot_window: must be a slot shorter than timer.roll_window",
        ),
        (MINIMAL + '[storage]\nmin_free = "120%"', "a number between 0 and 100, and %"),
        (MINIMAL + '[storage]\nmin_free = "some"', '"some" is no size'),
        (MINIMAL + '[storage]\nmin_free = "5 parsecs"', "or a share, such as 5%"),
        (MINIMAL + '[ingest]\ndriver_memory = "511m"', "too small for Spark: at least 512m"),
    ],
)
def test_refused_with_key_reason_and_source(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text)
    message = refusal(path)
    assert expected in message
    assert text == "" or f"({path})" in message


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("precision_ms = 512", "2_097_152 × 512 = 1_073_741_824 ms must be below 2**30 = 1_073"),
        ("slots = 21474837", "21_474_837 × 50 = 1_073_741_850 ms must be below 2**30 = 1_073"),
        ("precision_ms = 42", "= 90_000_000 ms exceed slots × precision_ms = 2_097_152 × 42 ="),
        ('roll_window = "28h 10m"', "= 105_000_000 ms exceed slots × precision_ms = 2_097_152 × "),
    ],
)
def test_a_wheel_that_does_not_fit_is_refused_with_the_ranges_that_do(
    tmp_path: Path, text: str, numbers: str
) -> None:
    message = refusal(write(tmp_path, MINIMAL + text))
    assert numbers in message
    ranges = re.findall(r"timer\.(slots|precision_ms) from ([\d_]+) to ([\d_]+)", message)
    assert [name for name, _, _ in ranges] == ["slots", "precision_ms"]
    for name, least, most in ranges:
        others = "" if text.startswith(name) else text
        for fits in (int(least), int(most)):
            load(write(tmp_path, f"{MINIMAL}{others}\n{name} = {fits}"))
        for beyond in (int(least) - 1, int(most) + 1):
            assert "ms" in refusal(write(tmp_path, f"{MINIMAL}{others}\n{name} = {beyond}"))


def test_no_range_is_named_where_none_fits(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, MINIMAL + 'roll_window = "13d"'))
    assert "from" not in message.partition("timer.roll_window")[2]
    assert "of the wheel: lower timer.roll_window" in message


def test_without_a_file_it_says_where_one_was_sought_and_what_the_smallest_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        load()
    message = str(refused.value)
    assert "timer: must be set" in message
    for sought in ("--config", "DUEWHEEL_CONFIG", str(tmp_path / "duewheel.toml")):
        assert sought in message
    smallest = write(tmp_path, message.partition("localhost:9092:\n")[2])
    assert load(smallest).kafka.servers == "localhost:9092"
    assert "No configuration file" not in refusal(write(tmp_path, ""))
    assert f"cannot be used ({smallest}):" in refusal(write(tmp_path, "[kafka]\n"))


def test_every_problem_is_listed_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, MINIMAL + "slots = 0\n[log]\nlevl = 1\n")
    monkeypatch.setenv("DUEWHEEL_INGEST__TRIGGER_MS", "soon")
    monkeypatch.setenv("DUEWHEEL_KAFAK__BOOTSTRAP_SERVERS", "a:1")
    monkeypatch.setenv("DUEWHEEL_KAFKA_BOOTSTRAP_SERVERS", "a:1")
    message = refusal(path, {"shard": {"index": -1}})
    lines = message.splitlines()
    assert any("timer.slots" in line and line.endswith(f"({path})") for line in lines)
    assert any("log.levl" in line and 'did you mean "level"' in line for line in lines)
    assert any("ingest.trigger_ms" in line and line.endswith("(environment)") for line in lines)
    assert any("DUEWHEEL_KAFAK__" in line and 'did you mean "kafka"' in line for line in lines)
    assert any("DUEWHEEL_KAFKA_BOOT" in line and "two underscores" in line for line in lines)
    assert any("shard.index" in line and line.endswith("(flags)") for line in lines)


def test_a_short_roll_window_needs_a_shorter_one_for_hot_slots_only_if_those_are_spread(
    tmp_path: Path,
) -> None:
    short = MINIMAL + 'roll_window = "10s"\n'
    assert load(write(tmp_path, short)).dequeue.hot_slot == "none"
    message = refusal(write(tmp_path, short + '[dequeue]\nhot_slot = "spread"\n'))
    assert "dequeue.hot_slot_window: must be a slot shorter than timer.roll_window" in message


def test_contradictions_between_good_values_are_all_listed(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + 'roll_window = "48h"\n[shard]\nindex = 3\ncount = 2\n')
    message = refusal(path)
    assert "timer.roll_window" in message
    assert "shard.index" in message
    assert "must be below shard.count = 2" in message


def test_a_transaction_ends_before_the_broker_aborts_it(tmp_path: Path) -> None:
    dequeue = '[dequeue]\ntransaction_timeout_ms = 10_000\ncall_deadline = "10s"\n'
    message = refusal(write(tmp_path, MINIMAL + dequeue))
    assert "dequeue.call_deadline" in message
    assert "must be below dequeue.transaction_timeout_ms = 10000" in message


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ('ca_file = "ca.pem"', "registry.url: must be set"),
        ('url = "https://r"\nuser = "ann"', "registry.user: goes with registry.password_file"),
        ('url = "https://r"\npassword_file = "p"', "registry.user: goes with"),
        (
            'url = "https://r"\nuser = "ann"\npassword_file = "p"\ntoken_file = "t"',
            "registry.token_file: is for a registry without registry.user",
        ),
        ('url = "https://ann:s3cr3t@r"', "registry.url: it is no address of a registry"),
        ('url = "https://r?key=s3cr3t"', "registry.url: it is no address of a registry"),
        ('url = "file:///s3cr3t"', "registry.url: it is no address of a registry"),
    ],
)
def test_settings_of_a_registry_that_cannot_be_used(tmp_path: Path, lines: str, text: str) -> None:
    message = refusal(write(tmp_path, f"{MINIMAL}[registry]\n{lines}\n"))
    assert text in message
    assert "s3cr3t" not in message


def test_a_registry_may_have_a_path(tmp_path: Path) -> None:
    lines = '[registry]\nurl = "http://r:8081/apis/ccompat/v7/"\n'
    assert load(write(tmp_path, MINIMAL + lines)).registry.url == "http://r:8081/apis/ccompat/v7"


def test_secrets_show_nowhere(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        MINIMAL
        + '[kafka.client]\nsasl_plain_username = "ann"\nsasl_plain_password = "hunter2"\n'
        + '[spark]\nspark.hadoop.fs.s3a.access.key = "hunter2"\n'
        + 'spark.driver.defaultJavaOptions = "-Dtrust.password=hunter2"\n',
    )
    settings = load(path)
    shown = json.dumps(settings.redacted()) + repr(settings) + str(settings)
    assert "hunter2" not in shown
    assert "ann" in shown
    assert settings.redacted()["kafka"]["client"]["sasl_plain_password"] == "**********"
    assert settings.kafka.client_options("producer")["sasl_plain_password"] == "hunter2"
    assert settings.spark_conf()["spark.hadoop.fs.s3a.access.key"] == "hunter2"


def test_refusals_do_not_quote_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        tmp_path,
        MINIMAL
        + '[kafka.client]\nsasl_plain_pasword = "hunter2"\n[kafka]\nsasl_password = "hunter2"\n',
    )
    assert "hunter2" not in refusal(path)
    monkeypatch.setenv("DUEWHEEL_KAFKA__CLIENT", '{"sasl_plain_password": "hunter2"')
    assert "hunter2" not in refusal(write(tmp_path, MINIMAL))


def test_what_is_shown_can_be_loaded_again(tmp_path: Path) -> None:
    settings = load(write(tmp_path, MINIMAL + 'roll_window = "90m"\nslots = 200000\n'))
    again = Settings(**settings.redacted())
    assert again.redacted() == settings.redacted()


def test_answers_are_written_only_where_a_topic_is_named(tmp_path: Path) -> None:
    without = load(write(tmp_path, MINIMAL))
    named = load(write(tmp_path, MINIMAL + 'reply_topic = "replies"\n'))
    assert [s.redacted()["timer"]["reply_topic"] for s in (without, named)] == [None, "replies"]
    closed = [factory.slot_values(s)["parameters"]["forbidden_targets"] for s in (without, named)]
    assert set(closed[1]) - set(closed[0]) == {"replies"}


def test_settings_are_frozen(tmp_path: Path) -> None:
    settings = load(write(tmp_path, MINIMAL))
    with pytest.raises(ValueError, match="frozen"):
        settings.shard.index = 1
    with pytest.raises(ValueError, match="frozen"):
        settings.shard = settings.shard


def test_a_broken_file_is_refused_with_its_line(tmp_path: Path) -> None:
    assert "is no TOML file" in refusal(write(tmp_path, "[timer\n"))
    assert "line 1" in refusal(write(tmp_path, "[timer\n"))


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("24h", 86_400_000),
        ("50ms", 50),
        ("1h30m", 5_400_000),
        ("1.001s", 1_001),
        ("1d", 86_400_000),
    ],
)
def test_durations(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms
    assert parse_duration_ms(format_duration_ms(expected_ms)) == expected_ms


@pytest.mark.parametrize("text", ["", "h", "5", "5 minutes", "1.0005s", "-5s", "5s later"])
def test_durations_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|milliseconds"):
        parse_duration_ms(text)


def test_sizes() -> None:
    assert parse_size_bytes("16 MiB") == 16 << 20
    assert parse_size_bytes("4kB") == 4000
    assert parse_size_bytes("17") == 17


@pytest.mark.parametrize(
    ("text", "of_a_gigabyte"), [("5%", 50 * 10**6), ("64MiB", 64 << 20), ("0", 0), (4096, 4096)]
)
def test_free_space_is_a_size_or_a_share(text: str | int, of_a_gigabyte: int) -> None:
    settings = load(None, {"timer": {"topics": "a"}, "storage": {"min_free": text}})
    assert settings.storage.min_free.of(10**9) == of_a_gigabyte
    shown = settings.redacted()["storage"]["min_free"]
    again = load(None, {"timer": {"topics": "a"}, "storage": {"min_free": shown}})
    assert again.storage == settings.storage


@pytest.mark.parametrize(
    ("text", "per_second"), [("500/s", 500.0), ("20/m", 1 / 3), ("1.5 / s", 1.5), ("36/h", 0.01)]
)
def test_each_shard_has_its_part_of_a_rate(text: str, per_second: float) -> None:
    given = {"timer": {"topics": "a"}, "target": {"mails": {"rate": text}, "orders": {}}}
    settings = load(None, given)
    assert settings.rates == {"mails": pytest.approx(per_second)}
    assert load(None, {**given, "shard": {"count": 4}}).rates["mails"] == per_second / 4
    shown = settings.redacted()["target"]["mails"]["rate"]
    again = load(None, {**given, "target": {"mails": {"rate": shown}}})
    assert again.rates == pytest.approx(settings.rates)


@pytest.mark.parametrize("text", ["500", "0/s", "-1/s", "5/w", "1e9/s", 500])
def test_what_is_no_rate_is_named(text: str | int) -> None:
    with pytest.raises(ConfigError, match=r"target\.mails\.rate.*is no rate"):
        load(None, {"timer": {"topics": "a"}, "target": {"mails": {"rate": text}}})


def test_names_of_secrets() -> None:
    for name in ("sasl_plain_password", "ssl.keystore.key", "spark.x.token", "sasl.jaas.config"):
        assert is_secret(name)
    for name in ("spark.hadoop.fs.s3a.access.key", "spark.hadoop.fs.azure.account.key.shop.blob"):
        assert is_secret(name)
    for name in ("request_timeout_ms", "security.protocol", "ssl.keystore.location", "key.count"):
        assert not is_secret(name)


def test_the_words_of_enumerations_are_read_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        tmp_path,
        '[timer]\ntopics = ["a"]\n[timer.topic.a]\nheaders = "Karafka"\npast_due = "Dead-Letter"\n'
        '[dequeue]\nhot_slot = "SPREAD"\ncompression = "LZ4"\n'
        'compression_by_topic = { b = "Zstd" }\n',
    )
    monkeypatch.setenv("DUEWHEEL_LOG__LEVEL", "WARNING")
    settings = load(path, {"log": {"format": "JSON"}})
    table, dequeue = settings.timer.topic["a"], settings.dequeue
    assert (table.headers, table.id, table.past_due) == ("karafka", "key", "dead-letter")
    assert (dequeue.hot_slot, dequeue.compression) == ("spread", "lz4")
    assert dequeue.compression_by_topic == {"b": "zstd"}
    assert (settings.log.level, settings.log.format) == ("warning", "json")
    assert "log.level: Input should be 'debug'" in refusal(None, {"log": {"level": "LOUD"}})
