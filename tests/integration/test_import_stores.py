"""`duewheel import postgres` and `import redis`, from real servers, where they are installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.harness import foreign_stores
from tests.harness.launcher import objects, run
from tests.harness.reader import read_topic
from tests.harness.sparkless_shard import SparklessShard, until

from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.errors import ConfigError
from duewheel.ops.imports.importer import Choice, import_timers
from duewheel.ops.imports.postgres import postgres_source
from duewheel.ops.imports.redis_set import MemberFields, redis_set_source

pytestmark = pytest.mark.kafka

Require = Callable[[object, str], None]

ROWS = 1_100  # of three chunks
BAD = 1_050  # a row of the third one


@pytest.fixture
def shard(config: Path) -> Iterator[SparklessShard]:
    with closing(SparklessShard(load(config), 1)) as shard:
        yield shard


@pytest.fixture
def dsn(require: Require) -> Iterator[str]:
    _require(require, "psycopg", "initdb")
    with foreign_stores.postgres() as dsn:
        yield dsn


@pytest.fixture
def url(require: Require) -> Iterator[str]:
    _require(require, "redis", "redis-server")
    with foreign_stores.redis() as url:
        yield url


def _require(require: Require, library: str, program: str) -> None:
    require(importlib.util.find_spec(library), f"{library} is not installed")
    require(foreign_stores.program(program), f"{program} is not installed")


def judged(verdict: dict[str, Any]) -> tuple[bool, int, int, int]:
    """Whether the end was reached, and what was read before, now, and written."""
    return (
        verdict["complete"],
        verdict["already_done"],
        verdict["read"],
        verdict["written"],
    )


def delivered(shard: SparklessShard) -> list[int]:
    """The values at the target, which are JSON objects with a number each."""
    records = read_topic(shard.servers, shard.target)
    return sorted(json.loads(record.value)["n"] for record in records)


def test_rows_of_postgres(config: Path, shard: SparklessShard, dsn: str) -> None:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE jobs (id bigint PRIMARY KEY, due_at timestamptz, topic text, body jsonb)"
        )
        connection.execute(
            "INSERT INTO jobs SELECT n, now() + (n - 10) * interval '1 hour' / 2, "
            f"CASE n WHEN {BAD} THEN 'no topic!' ELSE %s END, jsonb_build_object('n', n) "
            "FROM generate_series(1, %s) n",
            [shard.target, ROWS],
        )
        query = (
            "SELECT id AS position, due_at AS due, topic, body AS value, 'job-' || id AS id, "
            "'k' || id AS key FROM jobs WHERE body::text LIKE '%n%';"
        )

        def imported() -> dict[str, Any]:
            with postgres_source(dsn, query, "jobs", shard.timers) as source:
                return import_timers(shard.settings, source, Choice(shard.timers))

        words = ("import", "postgres", "--dsn", dsn, "--query", query, "--name", "jobs")
        exit_code, (verdict,) = objects(config, *words, "--dry-run", "--skip-refused")
        assert (exit_code, *judged(verdict)) == (1, True, 0, ROWS, ROWS - 1)
        assert (verdict["refused"], verdict["past_due"]) == ({"unusable": 1}, 10)
        assert verdict["refused_first"][0]["place"] == f"jobs@{BAD}"
        assert read_topic(shard.servers, shard.timers) == []

        assert judged(imported()) == (False, 0, 1_000, 1_000)
        connection.execute(f"DELETE FROM jobs WHERE id = {BAD}")
        assert judged(imported()) == (True, 1_000, ROWS - 1_001, ROWS - 1_001)
        assert judged(imported()) == (True, ROWS - 1, 0, 0)

        taken = read_topic(shard.servers, shard.timers)
        assert len({record.key for record in taken}) == len(taken) == ROWS - 1
        until(shard, lambda: delivered(shard) == list(range(1, 11)))
        (one,) = (r for r in read_topic(shard.servers, shard.target) if r.key == b"k7")
        assert dict(one.headers)["UNIQ_KEY"] == b"job-7"

        connection.execute("INSERT INTO jobs SELECT 0, due_at, topic, body FROM jobs LIMIT 1")
        assert imported()["missed"] == 1


def test_a_query_that_cannot_be_imported(shard: SparklessShard, dsn: str) -> None:
    def refused(reason: str, query: str) -> None:
        with (
            pytest.raises(ConfigError, match=reason),
            postgres_source(dsn, query, "jobs", shard.timers) as source,
        ):
            import_timers(shard.settings, source, Choice(shard.timers))

    refused("the query has no column due, topic, value", "SELECT 1 AS position")
    refused('PostgreSQL: relation "nowhere" does not exist', "SELECT * FROM nowhere")
    rest = "now() AS due, 't' AS topic, 'v' AS value"
    series = "FROM generate_series(1, 9) n"
    refused("is there twice", f"SELECT 1 AS position, {rest} {series}")
    refused("a position is null", f"SELECT nullif(n, 4) AS position, {rest} {series}")


def test_members_of_a_sorted_set(config: Path, shard: SparklessShard, url: str) -> None:
    import redis

    now_s = SystemClock().now_ms() // 1000
    rows = [{"n": n, "to": shard.target, "order": f"o{n}"} for n in range(1, ROWS + 1)]
    rows[BAD] = {"n": 0, "order": "none"}
    # Most have one score: the position lies among them, by their bytes.
    due_s = [now_s - 60 if n < 10 else now_s + 3_600 + max(0, n - 1_020) for n in range(ROWS)]
    members = {json.dumps(row): at for row, at in zip(rows, due_s, strict=True)}
    with closing(redis.Redis.from_url(url)) as client:
        client.zadd("delayed", members)
        fields = MemberFields(topic_field="to", key_field="order")

        def imported(key: str = "delayed", fields: MemberFields = fields) -> dict[str, Any]:
            with redis_set_source(url, key, fields, shard.timers) as source:
                return import_timers(shard.settings, source, Choice(shard.timers))

        assert judged(imported()) == (False, 0, 1_010, 1_010)
        client.zrem("delayed", json.dumps(rows[BAD]))
        assert judged(imported()) == (True, 1_010, ROWS - 1_011, ROWS - 1_011)
        assert judged(imported()) == (True, ROWS - 1, 0, 0)
        taken = read_topic(shard.servers, shard.timers)
        assert len({record.key for record in taken}) == len(taken) == ROWS - 1
        until(shard, lambda: delivered(shard) == list(range(1, 11)))

        client.zadd("delayed", {"late": now_s})
        words = ("import", "redis", "--url", url, "--key", "delayed", "--topic-field", "to")
        missed = run(config, *words, "--key-field", "order")
        assert (missed.returncode, "1 entries were added" in missed.stderr) == (1, True)

        client.zadd("whole", {b"\xff\x00": now_s * 1000})
        whole = MemberFields(topic="t", unit="ms")
        assert judged(imported("whole", whole)) == (True, 0, 1, 1)
        assert b"\xff\x00" in {r.value for r in read_topic(shard.servers, shard.timers)}
        with pytest.raises(ConfigError, match="no sorted set"):
            imported("x", whole)
    with pytest.raises(ConfigError, match="give either --topic, or --topic-field"):
        MemberFields()
