"""A proof takes the user's cluster and speed, and nothing that names the user's topics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from duewheel.config.settings import Settings, load
from duewheel.prove.own_settings import environment, own_settings, write_settings

pytestmark = pytest.mark.usefixtures("clean_surroundings")
SECRET = "hunter2 \"quoted\" 'ü'"


def user() -> Settings:
    return load(
        None,
        {
            "app": {"id": "shop"},
            "kafka": {
                "bootstrap_servers": "one:9092,two:9092",
                "client": {"sasl_plain_password": SECRET, "request_timeout_ms": 12_345},
            },
            "timer": {
                "topics": "orders.delayed",
                "topics_pattern": "shop-.*",
                "mapping": {"orders.delayed": "orders"},
                "state_topic": "shop.progress",
                "precision_ms": 45,
                "max_delay": "1h",
                "levels": "1s",
            },
            "dequeue": {"hot_slot": "dead-letter", "chunk_records": 500, "compression": "lz4"},
            "storage": {"data_dir": "/var/lib/shop", "min_free": "5%"},
            "metrics": {"dequeue_port": 9100},
            "shard": {"index": 2, "count": 3},
            "spark": {"spark.ssl.keyPassword": SECRET, "spark.ui.enabled": "true"},
        },
    )


def test_what_is_the_users_and_what_is_not(tmp_path: Path) -> None:
    own = own_settings(user(), "proof-1", tmp_path, 3_000)
    names = [*own.timer.topics, *own.service_topics.values(), *own.timer.mapping.values()]
    assert all(name.startswith("proof-1.") for name in names)
    assert own.timer.topics_pattern is None and own.timer.targets == ()
    assert own.storage.data_dir == tmp_path / "data"
    assert (own.shard.index, own.shard.count, own.metrics.dequeue_port) == (0, 1, None)
    assert own.kafka.bootstrap_servers == ("one:9092", "two:9092")
    assert own.kafka.client_options("admin")["sasl_plain_password"] == SECRET
    assert (own.timer.precision_ms, own.dequeue.chunk_records) == (45, 500)
    assert (own.dequeue.compression, own.dequeue.hot_slot) == ("lz4", "none")
    assert own.timer.max_delay.days == 40


def test_its_processes_read_the_same_and_no_secret_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = own_settings(user(), "proof-1", tmp_path, 3_000)
    path = tmp_path / "duewheel.toml"
    write_settings(own, path)
    assert "hunter2" not in path.read_text("utf-8")
    monkeypatch.setenv("DUEWHEEL_APP__ID", "of-the-user")
    monkeypatch.setenv("DUEWHEEL_CACHE_DIR", "/var/cache/shop")
    given = environment(own)
    monkeypatch.delenv("DUEWHEEL_APP__ID")
    assert "DUEWHEEL_APP__ID" not in given
    assert given["DUEWHEEL_CACHE_DIR"] == "/var/cache/shop"
    for name in ("DUEWHEEL_KAFKA__CLIENT", "DUEWHEEL_SPARK"):
        monkeypatch.setenv(name, given[name])
    assert load(path).model_dump() == own.model_dump()
    assert "hunter2" not in json.dumps(own.redacted())
