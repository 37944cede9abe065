"""kill -9 of `duewheel relay postgres`, at each of its steps and at any moment, while applications
write: each committed row is in the timer topic once, in its order. Real Kafka, real PostgreSQL.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.crash.fault_shard import POINTS, SCRIPT
from tests.harness import foreign_stores
from tests.harness.config_file import write_config
from tests.harness.launcher import launch, tail, wait_until
from tests.harness.outbox import NO_POSTGRES, Writers, by_key, make_tables
from tests.harness.reader import read_topic
from tests.harness.shared_broker import SharedBroker

from duewheel.config.settings import load
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.osutil.child_process import Child

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

QUICK = {"relay.commit_answered", "relay.deleted_uncommitted"}  # others in `make crash-matrix`
RELAY = [name for name in POINTS if name.startswith("relay.")]
KILLS = 12


@pytest.fixture(scope="module")
def database(require: Callable[[object, str], None]) -> Iterator[str]:
    require(foreign_stores.program("initdb"), NO_POSTGRES)
    with foreign_stores.postgres() as database:
        yield database


class Relayed:
    """An outbox with one row that is impossible, and its relay."""

    def __init__(self, folder: Path, servers: str, database: str, name: str) -> None:
        self.database, self.target = database, f"{name}.orders"
        self._servers, self._timers = servers, f"{name}.timers"
        self.log = folder / "relay.log"
        self.config = write_config(folder, servers, name, relay={"database": database})
        settings = load(self.config)
        with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
            admin.init_topics(settings, partitions=2)
        make_tables(database, self._timers)
        with psycopg.connect(database) as connection:
            connection.execute(
                "INSERT INTO duewheel_outbox (target, due_ms, value) VALUES ('no topic!', 1, 'x')"
            )

    def start(self) -> Child:
        return launch(self.config, "relay", "postgres", log=self.log)

    def require_sent(self, committed: dict[bytes, list[bytes]]) -> None:
        """A relay that is not killed sends the rest, and nothing twice."""
        again = self.start()
        wait_until(lambda: len(self._refusals()) == 1, lambda: tail(self.log))
        again.stop(30)
        (refusal,) = self._refusals()
        assert refusal is not None
        assert "no topic!" in refusal
        assert any(committed.values())
        sent = by_key(read_topic(self._servers, self._timers))
        assert sent == {key: values for key, values in committed.items() if values}

    def _refusals(self) -> list[str | None]:
        with psycopg.connect(self.database) as connection:
            return [row[0] for row in connection.execute("SELECT refused FROM duewheel_outbox")]


@pytest.fixture
def relayed(
    broker: SharedBroker, database: str, tmp_path: Path, unique_name: Callable[[str], str]
) -> Relayed:
    name = unique_name("app")[-40:].lstrip("-")
    return Relayed(tmp_path, broker.bootstrap_servers, database, name)


@pytest.mark.parametrize(
    "point",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.crash_matrix) for each in RELAY],
)
def test_a_kill_at_each_step(relayed: Relayed, tmp_path: Path, point: str) -> None:
    writers = Writers(relayed.database, relayed.target, seed=RELAY.index(point))
    try:
        mark, log = tmp_path / "mark", relayed.log
        words = ["--point", point, "--mark", str(mark), "--", "relay", "postgres"]
        with log.open("ab") as out:
            command = [sys.executable, "-P", str(SCRIPT), *words, "--config", str(relayed.config)]
            child = Child(command, stdout=out, stderr=out, on_parent_death=signal.SIGKILL)
        wait_until(lambda: child.exit_code is not None, lambda: tail(log))
        assert (child.exit_code, mark.exists()) == (-signal.SIGKILL, True), tail(log)
    finally:
        committed = writers.end()
    relayed.require_sent(committed)


@pytest.mark.crash_matrix
def test_kills_at_any_moment(relayed: Relayed) -> None:
    chance, ready = random.Random(7), "the relay is ready"
    writers = Writers(relayed.database, relayed.target, count=8)
    try:
        for _ in range(KILLS):
            relayed.log.unlink(missing_ok=True)
            child = relayed.start()
            wait_until(lambda: ready in tail(relayed.log), lambda: tail(relayed.log))
            time.sleep(chance.random() * 2)
            child.end(signal.SIGKILL, 30)
    finally:
        committed = writers.end()
    relayed.require_sent(committed)
