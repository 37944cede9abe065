"""What one application may write costs the others little: large rows, rows that cannot be read,
many rows, and rights beyond the documented ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path

import psycopg
import pytest
from tests.harness.config_file import write_config
from tests.harness.launcher import wait_until
from tests.harness.outbox import make_tables, sql_of_page
from tests.harness.reader import read_topic
from tests.harness.relaying import (
    Connection,
    count,
    insert,
    relay_all,
    relaying,
    values,
    wait_empty,
)
from tests.harness.shared_broker import SharedBroker

from duewheel.checkpoints.relay_position import RelayPosition
from duewheel.config.settings import Settings, load
from duewheel.errors import DatabaseUnavailable
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.relay.outbox_table import OutboxTable

pytestmark = pytest.mark.kafka

NUMBERS = '{"a": [' + "1e130000, " * 8_999 + "1]}"  # as text of jsonb, it would have 1.2 GB


def reasons(connection: Connection) -> list[str]:
    rows = connection.execute("SELECT refused FROM duewheel_outbox ORDER BY seq").fetchall()
    return [reason for (reason,) in rows]


def test_numbers_in_headers_are_refused(settings: Settings, connection: Connection) -> None:
    insert(connection, "a", "numbers", "b")
    change = f"UPDATE duewheel_outbox SET headers = '{NUMBERS}' WHERE value = 'numbers'"
    connection.execute(change)
    relay_all(settings, connection)
    assert values(settings) == [b"a", b"b"]
    (reason,) = reasons(connection)
    assert "headers" in reason


@pytest.mark.parametrize("column", ["key", "target", "timer_id", "tag", "value", "headers"])
def test_a_large_column_is_refused_and_not_read(
    settings: Settings, connection: Connection, column: str
) -> None:
    insert(connection, "a", "large", "b")
    connection.execute(
        f"UPDATE duewheel_outbox SET {column} = repeat('x', 17 << 20)::text::"
        f"{'bytea' if column == 'value' else 'text'} WHERE value = 'large'"
    )
    relay_all(settings, connection)
    assert values(settings) == [b"a", b"b"]
    (reason,) = reasons(connection)
    assert "bytes" in reason
    assert len(reason) < 1_000


def outbox_table(settings: Settings, *topics: str) -> OutboxTable:
    database = settings.relay.database.get_secret_value()
    return OutboxTable(database, "outbox", topics or settings.timer.topics)


def test_a_part_is_bounded_by_all_columns(settings: Settings, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO duewheel_outbox (target, due_ms, key, value) "
        "SELECT 'orders', 1, repeat('k', 100000), 'v' FROM generate_series(1, 50)"
    )
    with closing(outbox_table(settings)) as table:
        rows, refused = table.next_rows(RelayPosition(), 1_000)
    assert (len(rows), refused) == (6, [])  # 16 times 100 kB: the last one reaches 8 MiB


def test_a_row_that_postgresql_cannot_read_is_refused(
    config: Path, settings: Settings, database: str
) -> None:
    """In a database without an encoding, text may have any bytes."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS plain")
        connection.execute(
            "CREATE DATABASE plain ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        )
    plain = database.replace("dbname=postgres", "dbname=plain")
    make_tables(plain, settings.timer.topics[0])
    settings = load(config, {"relay": {"database": plain}})
    with psycopg.connect(f"{plain} client_encoding=utf8", autocommit=True) as connection:
        insert(connection, *"abcdefgh")
        for name, column in {"c": "tag", "f": "timer_topic"}.items():
            connection.execute(
                f"UPDATE duewheel_outbox SET {column} = convert_from('\\xff', 'SQL_ASCII') "
                f"WHERE value = '{name}'"
            )
        relay_all(settings, connection)
        found = reasons(connection)
    assert values(settings) == [each.encode() for each in "abdegh"]
    assert len(found) == 2
    assert all("invalid byte sequence" in reason for reason in found)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_server_out_of_memory_refuses_no_row(
    settings: Settings, connection: Connection, rows: int
) -> None:
    """Lengths are read; each read of rows would fail, also one of no rows."""
    insert(connection, *map(str, range(rows)))
    connection.execute(
        """
        CREATE OR REPLACE FUNCTION no_memory() RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS
        $$ BEGIN RAISE 'out of memory' USING ERRCODE = '53200'; END $$;
        CREATE SCHEMA full_server;
        CREATE VIEW full_server.duewheel_outbox AS
        SELECT seq, id, timer_topic, key, value, target, no_memory() AS due_ms, timer_id, tag,
            cancels, headers, refused FROM public.duewheel_outbox
        """
    )
    try:
        database = settings.relay.database.get_secret_value()
        of_schema = f"{database} options='-c search_path=full_server,public'"
        with (
            closing(OutboxTable(of_schema, "outbox", settings.timer.topics)) as table,
            pytest.raises(DatabaseUnavailable, match="out of memory") if rows else nullcontext(),
        ):
            assert table.next_rows(RelayPosition(), 1_000) == ([], [])
    finally:
        connection.execute("DROP SCHEMA full_server CASCADE")


@pytest.mark.parametrize(
    "headers",
    [
        '{"\\ud800": "x"}',
        '{"a": "\\ud800"}',
        '{"UNIQ_KEY\\u0000": 1}',
        '{"\\u0000": null}',
        "\x01",
        "NaN",
    ],
)
def test_odd_headers_stop_nothing(settings: Settings, connection: Connection, headers: str) -> None:
    insert(connection, "odd", "b")
    connection.execute("UPDATE duewheel_outbox SET headers = %s WHERE value = 'odd'", [headers])
    relay_all(settings, connection)
    assert values(settings) == [b"b"]
    assert len(reasons(connection)) == 1


@contextmanager
def application(database: str, connection: Connection) -> Iterator[Connection]:
    """A connection of a role with the rights that docs/outbox.md grants."""
    connection.execute("CREATE ROLE shop LOGIN")
    connection.execute(sql_of_page()[1])
    as_shop = database.replace("user=postgres", "user=shop")
    with psycopg.connect(as_shop, autocommit=True) as shop:
        yield shop


def test_an_application_cannot_choose_seq_id_or_refused(
    settings: Settings, database: str, connection: Connection
) -> None:
    insert(connection, "a")
    with application(database, connection) as shop:
        for column, value in {
            "seq": "generate_series(2, 100)",
            "id": "gen_random_uuid()",
            "refused": "''",
        }.items():
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                shop.execute(
                    f"INSERT INTO duewheel_outbox ({column}, target, due_ms) "
                    f"OVERRIDING SYSTEM VALUE SELECT {value}, 'x', 1"
                )
        insert(shop, "b")
    relay_all(settings, connection)
    assert values(settings) == [b"a", b"b"]


def fill(connection: Connection, topic: str, rows: int, value_bytes: int = 1) -> None:
    connection.execute(
        "INSERT INTO duewheel_outbox (timer_topic, target, due_ms, value) "
        "SELECT %s, 'orders', 1, decode(repeat('61', %s), 'hex') FROM generate_series(1, %s)",
        [topic, value_bytes, rows],
    )


def parts(table: OutboxTable, count: int) -> list[dict[str, int]]:
    """Sends nothing, and deletes the rows of each part; returns how many each has of each topic."""
    position, found = RelayPosition(), []
    for _ in range(count):
        rows, _ = table.next_rows(position, 1_000)
        position = position.after([(row.seq, row.id) for row in rows])
        topics = [row.timer_topic for row in rows]
        assert [row.seq for row in rows] == sorted(row.seq for row in rows)
        found.append({topic: topics.count(topic) for topic in topics})
    return found


def test_timer_topics_have_equal_shares(settings: Settings, connection: Connection) -> None:
    fill(connection, "a", 3_000)
    fill(connection, "b", 1)
    fill(connection, "a", 10)
    with closing(outbox_table(settings, "a", "b", "c")) as table:
        table.next_rows(RelayPosition(), 1_000)
        had_more, found = table.has_more, parts(table, 4)
        assert (had_more, table.has_more) == (True, False)
    assert found == [{"a": 500, "b": 1}, {"a": 1_000}, {"a": 1_000}, {"a": 510}]


def test_large_rows_of_a_timer_topic_delay_others_by_one_part(
    settings: Settings, connection: Connection
) -> None:
    fill(connection, "a", 4, 9 << 20)
    fill(connection, "b", 1_200)
    with closing(outbox_table(settings, "a", "b")) as table:
        found = parts(table, 6)
    assert found == [{"a": 1}, {"b": 500, "a": 1}, {"b": 500, "a": 1}, {"b": 200, "a": 1}, {}, {}]


def test_rows_of_no_timer_topic_are_refused_and_delay_none(
    settings: Settings, connection: Connection
) -> None:
    fill(connection, "elsewhere", 2_500)
    insert(connection, "a")
    with closing(outbox_table(settings)) as table:
        rows, _ = table.next_rows(RelayPosition(), 1_000)
        assert ([row.timer_topic for row in rows].count("elsewhere"), len(rows)) == (500, 501)
    with relaying(settings) as running:
        wait_empty(connection, running)
    assert values(settings) == [b"a"]
    assert count(connection, "refused LIKE '%no timer topic%'") == 2_500


def make_team(database: str, team: str, topic: str) -> None:
    """Makes the schema of a team, its tables and its roles as docs/outbox.md has them."""
    page = sql_of_page()[2].replace("team_a.delayed", topic).replace("_a", team)
    schema, check = page.split("-- then")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS team{team} CASCADE")
        connection.execute(f"CREATE ROLE team{team} LOGIN; CREATE ROLE relay{team} LOGIN")
        connection.execute(schema)
    of_team = f"{database} options='-c search_path=team{team}'"
    make_tables(of_team, topic)
    with psycopg.connect(of_team, autocommit=True) as connection:
        connection.execute("--" + check)
        connection.execute(sql_of_page()[1].replace("shop", f"team{team}"))
        connection.execute(
            f"GRANT SELECT, UPDATE, DELETE ON duewheel_outbox TO relay{team};"
            f"GRANT SELECT, INSERT, UPDATE ON duewheel_relay TO relay{team}"
        )


def test_a_table_and_a_relay_for_each_team(
    broker: SharedBroker, tmp_path: Path, database: str, unique_name: Callable[[str], str]
) -> None:
    name = unique_name("app")[-40:].lstrip("-")
    topics = {"_a": f"{name}.1", "_b": f"{name}.2"}
    timer = {"topics": list(topics.values())}
    config = write_config(tmp_path, broker.bootstrap_servers, name, timer=timer)
    settings = load(config)
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings, partitions=2)
    with ExitStack() as stack:
        for team, topic in topics.items():
            make_team(database, team, topic)
            relay = {"database": database.replace("user=postgres", f"user=relay{team}")}
            stack.enter_context(relaying(load(config, {"relay": relay}), f"relay{team}"))
        for team in topics:
            as_team = database.replace("user=postgres", f"user=team{team}")
            with psycopg.connect(as_team, autocommit=True) as application:
                insert(application, team)
                with pytest.raises(psycopg.errors.CheckViolation):
                    fill(application, "elsewhere", 1)
        wait_until(lambda: all(sent(settings, each) for each in topics.values()), "no rows")
    assert [sent(settings, topic) for topic in topics.values()] == [[b"_a"], [b"_b"]]


def sent(settings: Settings, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(settings.kafka.servers, topic)]
