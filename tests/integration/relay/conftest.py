"""An outbox in a real PostgreSQL, and the topics of its relay on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.harness import foreign_stores
from tests.harness.config_file import write_config
from tests.harness.outbox import NO_POSTGRES, make_tables
from tests.harness.shared_broker import SharedBroker

from duewheel.config.settings import Settings, load
from duewheel.kafka.topics.admin import KafkaAdmin


@pytest.fixture(scope="module")
def database(require: Callable[[object, str], None]) -> Iterator[str]:
    require(foreign_stores.program("initdb"), NO_POSTGRES)
    with foreign_stores.postgres() as database:
        yield database


@pytest.fixture
def config(
    broker: SharedBroker, database: str, tmp_path: Path, unique_name: Callable[[str], str]
) -> Path:
    name = unique_name("app")[-40:].lstrip("-")
    make_tables(database, f"{name}.timers")
    return write_config(tmp_path, broker.bootstrap_servers, name, relay={"database": database})


@pytest.fixture
def settings(config: Path) -> Settings:
    settings = load(config)
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings, partitions=2)
    return settings


@pytest.fixture
def connection(database: str, config: Path) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection
