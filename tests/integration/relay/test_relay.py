"""`duewheel relay postgres`, on a real broker and a real PostgreSQL. crash/test_relay_kill.py kills
it at each of its steps.
"""

from __future__ import annotations

import threading
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import django
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session
from tests.harness.fault_proxy import FaultProxy
from tests.harness.launcher import events, launch, run, tail, wait_until
from tests.harness.outbox import Writers, by_key, python_of_page, sql_of_page
from tests.harness.reader import read_topic
from tests.harness.relaying import (
    count,
    insert,
    relay_all,
    relaying,
    taken,
    values,
    wait_empty,
)
from tests.harness.sparkless_shard import SparklessShard, failing_third, too_slow_above, until

from duewheel.adapters import outbox
from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError, Fenced, RecoveryRefused
from duewheel.kafka.ledger import transactional_producer
from duewheel.ops.relay import outbox_table, relay

pytestmark = pytest.mark.kafka


def test_rows_are_delivered_and_cancelled_and_rolled_back_ones_are_nothing(
    config: Path, connection: psycopg.Connection[Any]
) -> None:
    with closing(SparklessShard(load(config), 1)) as shard, relaying(shard.settings) as running:
        with connection.transaction(force_rollback=True):
            outbox.schedule(connection.execute, shard.target, b"never", delay="1ms")
        with connection.transaction():
            more: dict[str, Any] = {
                "headers": {"own": "kept"},
                "tag": "sale",
                "id": "id-a",
                "key": "k",
            }
            outbox.schedule(connection.execute, shard.target, b"\xffa", deliver_at=1, **more)
            insert(connection, "cancelled")
            connection.execute(
                "UPDATE duewheel_outbox SET timer_id = 'gone' WHERE value != '\\xff61'"
            )
        wait_empty(connection, running)
        outbox.cancel(connection.execute, "gone", key="k")
        wait_empty(connection, running)
        until(shard, lambda: len(read_topic(shard.servers, shard.target)) > 0)
        (record,) = read_topic(shard.servers, shard.target)
        assert (record.key, record.value) == (b"k", b"\xffa")
        headers = dict(record.headers)
        assert (headers["own"], headers["TIMER_TAG"]) == (b"kept", b"sale")
        assert headers["UNIQ_KEY"] == b"id-a"
        assert {each.value for each in taken(shard.settings)} == {b"\xffa", b"cancelled", None}


def test_plain_sql_django_and_sqlalchemy(
    settings: Settings, database: str, connection: psycopg.Connection[Any]
) -> None:
    connection.execute(sql_of_page()[3])
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(database)
    )
    of_page: dict[str, Any] = {}
    exec(python_of_page(), of_page)
    of_page["with_psycopg"](connection)
    with Session(engine) as session:
        of_page["with_sqlalchemy"](session)
        execute = session.connection().exec_driver_sql
        outbox.schedule(execute, "orders", b"sqlalchemy", delay="1m", headers={"a": "100%"})
        session.commit()
        of_page["with_sqlalchemy"](session)  # rolled back
    engine.dispose()
    from django.db.backends.postgresql.base import DatabaseWrapper

    pairs = dict(pair.split("=") for pair in database.split())
    names = {"HOST": pairs["host"], "USER": pairs["user"], "NAME": pairs["dbname"]}
    wrapper = DatabaseWrapper({**DEFAULTS, **names})
    with closing(wrapper):
        of_page["with_django"](wrapper)
    relay_all(settings, connection)
    found = {record.value: dict(record.headers) for record in taken(settings)}
    assert values(settings).count(b"pay") == 3
    assert found.keys() == {b'{"pay": "your order"}', None, b"sqlalchemy", b"pay"}
    assert found[None] == {"TIMER_DEL_UNIQKEY": b"reminder-41"}
    assert found[b'{"pay": "your order"}']["UNIQ_KEY"] == b"reminder-42"
    assert found[b"sqlalchemy"]["a"] == b"100%"


DEFAULTS = {
    "PASSWORD": "",
    "PORT": "",
    "OPTIONS": {},
    "CONN_MAX_AGE": 0,
    "CONN_HEALTH_CHECKS": False,
    "AUTOCOMMIT": True,
    "ATOMIC_REQUESTS": False,
    "TIME_ZONE": None,
}


@pytest.fixture(autouse=True, scope="module")
def django_is_set_up() -> None:
    from django.conf import settings

    if not settings.configured:
        memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        settings.configure(DATABASES={"default": memory}, USE_TZ=True)
        django.setup()


def test_concurrent_rows_are_sent_once_in_the_order_of_each_writer(
    settings: Settings, database: str, connection: psycopg.Connection[Any]
) -> None:
    writers = Writers(database, "orders", count=6)
    with relaying(settings) as running:
        wait_until(lambda: len(taken(settings)) > 300, "few rows")
        committed = writers.end()
        wait_empty(connection, running)
    assert by_key(taken(settings)) == committed


def test_a_row_that_is_committed_late_delays_no_other(
    settings: Settings, database: str, connection: psycopg.Connection[Any]
) -> None:
    with relaying(settings) as running, psycopg.connect(database) as late:
        insert(late, "late")
        insert(connection, "other")
        wait_until(lambda: values(settings) == [b"other"], "it waits")
        late.commit()
        wait_empty(connection, running)
    assert values(settings) == [b"late", b"other"]


def test_impossible_rows_are_left_out_with_their_reasons(
    settings: Settings, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_PART_ROWS", 3)
    insert(connection, "a", "no target", "large", "huge", "b", "broken", "elsewhere", "c", "d")
    for name, change in {
        "no target": "target = 'no topic!'",
        "large": "value = decode(repeat('00', 3000000), 'hex')",
        "huge": "value = decode(repeat('00', 17000000), 'hex')",
        "broken": "headers = (repeat('[', 5000) || repeat(']', 5000))::jsonb",
        "elsewhere": "timer_topic = 'orders'",
    }.items():
        connection.execute(f"UPDATE duewheel_outbox SET {change} WHERE value = %s", [name.encode()])
    with relaying(settings) as running:
        wait_empty(connection, running)
        assert values(settings) == [b"a", b"b", b"c", b"d"]
        found = dict(
            connection.execute("SELECT seq, refused FROM duewheel_outbox ORDER BY seq").fetchall()
        )
        reasons = ("no topic name", "bytes at most", "at most", "JSON", "no timer topic")
        assert all(why in text for why, text in zip(reasons, found.values(), strict=True)), found
        connection.execute(
            "UPDATE duewheel_outbox SET refused = NULL, target = 'orders' WHERE seq = %s",
            [min(found)],
        )
        wait_empty(connection, running)
    assert values(settings) == [b"a", b"b", b"c", b"d", b"no target"]


def test_a_part_of_few_bytes_leaves_no_row_out(
    settings: Settings, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_table, "_PART_BYTES", 5)
    names = ["one", "two", "a long value", "three", "four"]
    for name in names:
        insert(connection, name)
        outbox.cancel(connection.execute, name, key="k")
    relay_all(settings, connection)
    records = by_key(taken(settings))[b"k"]
    assert records == [each for name in names for each in (name.encode(), None)]


@pytest.mark.parametrize("committed", [True, False])
def test_a_doubt_is_resolved(
    settings: Settings,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    committed: bool,
) -> None:
    monkeypatch.setattr(relay, "_PART_ROWS", 2)
    monkeypatch.setattr(transactional_producer, "commit_all", failing_third(committed=committed))
    insert(connection, *"abcdefghi")
    relay_all(settings, connection)
    assert by_key(taken(settings)) == {b"k": [each.encode() for each in "abcdefghi"]}


def test_a_part_that_is_too_slow_is_halved(
    settings: Settings, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_producer, "commit_all", too_slow_above(2))
    insert(connection, *"abcdefghi")
    relay_all(settings, connection)
    assert by_key(taken(settings)) == {b"k": [each.encode() for each in "abcdefghi"]}


def test_a_lost_connection_begins_the_relay_again(
    settings: Settings, connection: psycopg.Connection[Any]
) -> None:
    insert(connection, "a")
    with relaying(settings) as running:
        wait_empty(connection, running)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name LIKE 'duewheel relay%'"
        )
        insert(connection, "b")
        wait_empty(connection, running)
    assert values(settings) == [b"a", b"b"]


def test_of_two_relays_the_later_one_goes_on(
    config: Path, settings: Settings, connection: psycopg.Connection[Any]
) -> None:
    with relaying(settings) as first:
        insert(connection, "a")
        wait_empty(connection, first)
        log = config.with_name("relay.log")
        second = launch(config, "relay", "postgres", "--set", "metrics.relay_port=0", log=log)
        wait_until(lambda: "the relay is ready" in tail(log), lambda: tail(log))
        insert(connection, *"bcdefghi")
        wait_until(lambda: count(connection) == 0, "rows are left")
        first.thread.join(60)
        assert isinstance(first.error, Fenced)
        (served,) = events(log, "metrics served")
        with urllib.request.urlopen(served["url"], timeout=30) as answer:
            assert b'duewheel_relay_rows_total{outcome="sent"} 8.0' in answer.read()
        second.stop(30)
        assert second.exit_code == 0, tail(log)  # it has run until then
    assert values(settings) == [each.encode() for each in "abcdefghi"]


def test_a_relay_that_runs_shows_what_its_kafka_clients_say(
    config: Path, settings: Settings, connection: psycopg.Connection[Any]
) -> None:
    (server,) = settings.kafka.bootstrap_servers
    log = config.with_name("relay.log")
    with FaultProxy(server) as proxy:
        words = ("--bootstrap-servers", proxy.bootstrap_servers, "--set", "metrics.relay_port=0")
        running = launch(config, "relay", "postgres", *words, log=log)
        wait_until(lambda: events(log, "the relay is ready"), lambda: tail(log))
        proxy.away()
        insert(connection, "a")
        wait_until(lambda: '"logger": "kafka.' in tail(log), lambda: tail(log))
        running.stop(30)
        proxy.back()
    assert running.exit_code == 0, tail(log)


def test_a_database_that_has_gone_back_is_noticed(
    settings: Settings, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_PART_ROWS", 1)
    insert(connection, *"abc")
    connection.execute("CREATE TABLE backup AS SELECT * FROM duewheel_outbox")
    relay_all(settings, connection)
    # As a standby that lacks what came after the backup.
    connection.execute(
        "INSERT INTO duewheel_outbox OVERRIDING SYSTEM VALUE SELECT * FROM backup;"
        "UPDATE duewheel_relay SET part = 0; DROP TABLE backup"
    )
    with relaying(settings) as running:
        running.thread.join(60)
        assert isinstance(running.error, RecoveryRefused)
        assert "PostgreSQL has gone back" in str(running.error)
    assert values(settings) == [b"a", b"b", b"c"]
    connection.execute("DELETE FROM duewheel_outbox")
    insert(connection, "d")
    with relaying(settings, "another") as running:
        running.thread.join(60)
        assert isinstance(running.error, ConfigError)
        assert "the relay 'outbox' sends these rows" in str(running.error)
    connection.execute("DELETE FROM duewheel_relay")
    with relaying(settings, "another") as running:
        wait_empty(connection, running)
    assert values(settings) == [b"a", b"b", b"c", b"d"]


def test_a_relay_of_another_name_is_never_ready(
    config: Path, settings: Settings, connection: psycopg.Connection[Any]
) -> None:
    insert(connection, "one")  # it is sent by the relay that has the table
    relay_all(settings, connection)
    ended = run(config, "relay", "postgres", "--name", "another")
    assert ended.returncode == 2, ended.stderr
    assert "the relay 'outbox' sends these rows" in ended.stderr
    assert "the relay is ready" not in ended.stderr


def test_a_row_with_the_number_of_a_lost_one_is_sent(
    settings: Settings, connection: psycopg.Connection[Any]
) -> None:
    """A standby takes over without the newest transaction, whose row is sent."""
    insert(connection, "lost")
    relay_all(settings, connection)
    connection.execute("UPDATE duewheel_relay SET part = part - 1")
    connection.execute("ALTER TABLE duewheel_outbox ALTER seq RESTART")
    insert(connection, "new")
    relay_all(settings, connection)
    assert values(settings) == [b"lost", b"new"]


def test_a_relay_whose_position_is_lost_sends_nothing(
    settings: Settings, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("INSERT INTO duewheel_relay VALUES ('outbox', 7)")
    insert(connection, "a")
    with relaying(settings) as running:
        running.thread.join(60)
        assert isinstance(running.error, Fenced)
        assert "has sent part 7" in str(running.error)
    assert taken(settings) == []


def test_what_cannot_be_used_ends_it_at_once(
    config: Path, settings: Settings, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("DROP TABLE duewheel_relay")
    for database, code, text in (
        (settings.relay.database.get_secret_value(), 2, "docs/outbox.md has the tables"),
        ("host=127.0.0.1 port=1 user=u password=hunter2", 1, "PostgreSQL: "),
        ("postgresql://u:hunter2@[bad/x", 2, "relay.database is no connection string"),
        ("hunter2", 2, "relay.database is no connection string"),
    ):
        ended = run(config, "relay", "postgres", "--set", f"relay.database={database}")
        assert ended.returncode == code, ended.stderr
        assert text in ended.stderr
        assert "hunter2" not in ended.stdout + ended.stderr
    shown = run(config, "config", "check", "--set", "relay.database=password=hunter2")
    assert (shown.returncode, "hunter2" in shown.stdout) == (0, False)
    with pytest.raises(ConfigError, match="is no name"):
        relay.run_relay(settings, "no name!", threading.Event())


@pytest.mark.parametrize(
    ("outbox_rights", "relay_rights", "denied", "lacked"),
    [
        (
            *("SELECT, UPDATE", "SELECT", "duewheel_relay"),
            "DELETE on duewheel_outbox, INSERT on duewheel_relay, UPDATE on duewheel_relay",
        ),
        (
            *("UPDATE, DELETE", "SELECT, INSERT, UPDATE", "duewheel_outbox"),
            "SELECT on duewheel_outbox",
        ),
    ],
)
@pytest.mark.usefixtures("settings")
def test_a_missing_right_is_named(
    config: Path,
    database: str,
    connection: psycopg.Connection[Any],
    outbox_rights: str,
    relay_rights: str,
    denied: str,
    lacked: str,
) -> None:
    connection.execute("DROP ROLE IF EXISTS weak; CREATE ROLE weak LOGIN")
    connection.execute(f"GRANT {outbox_rights} ON duewheel_outbox TO weak")
    connection.execute(f"GRANT {relay_rights} ON duewheel_relay TO weak")
    as_weak = database.replace("user=postgres", "user=weak")
    ended = run(config, "relay", "postgres", "--set", f"relay.database={as_weak}")
    connection.execute("DROP OWNED BY weak; DROP ROLE weak")
    assert ended.returncode == 2, ended.stderr
    assert (
        f"PostgreSQL: permission denied for table {denied}: the relay's role lacks {lacked} "
        "(docs/outbox.md)"
    ) in ended.stderr
