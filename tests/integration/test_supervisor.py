"""`run` over temporary faults: a lock that is held, a refused login; more: test_end_to_end.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tests.harness.whole_shard import WholeShard

from duewheel.checkpoints.file_lock import ENGINE_LOCK, FileLock
from duewheel.dev.broker import DevBroker
from duewheel.dev.listeners import HOST, free_ports, listener_properties
from duewheel.dev.sasl_ssl import keystore_properties, self_signed
from duewheel.errors import Locked
from duewheel.java.find import Java

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

USER, PASSWORD, SCRAM = "duewheel", "hunter2", "SCRAM-SHA-256"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def died(shard: WholeShard, name: str) -> list[dict[str, object]]:
    return [each for each in shard.events("process died") if each["process"] == name]


@pytest.mark.crash_matrix
def test_a_lock_held_for_longer_than_a_process_waits(shard: WholeShard) -> None:
    """As of a disk that stalls: nobody who could be killed holds it."""
    shard.start()
    lock = FileLock(shard.settings.storage.data_dir / ENGINE_LOCK)
    with lock.held(30):
        shard.wait(lambda: bool(died(shard, "dequeue")))
        first = died(shard, "dequeue")[0]
        assert first["exit_code"] == Locked.exit_code
        assert f"held by process {os.getpid()}" in str(first["reason"])
        known = shard.status()["run"]["dequeue"]
        assert known["last_exit_code"] == Locked.exit_code
        assert "engine.lock" in known["last_reason"]
        shard.wait(lambda: len(died(shard, "dequeue")) > 1)
    lock.close()
    shard.deliver_one(b"after the lock")
    shard.wait(lambda: not any(each["is_failing"] for each in shard.status()["run"].values()))
    assert shard.scrape("ingest")["process_restarts_total:dequeue"] >= 2
    assert shard.scrape("dequeue")["process_failing:dequeue"] == 0
    assert shard.stop() == 0


# ---- a login that is refused --------------------------------------------------------------------


@dataclass(frozen=True)
class LoginBroker:
    """A broker by its listeners: for its operator, and, encrypted, for those who log in.

    Attributes:
        authority: file of the certificate that clients of `sasl` have to trust.
    """

    broker: DevBroker
    plain: str
    sasl: str
    authority: Path


@pytest.fixture
def secured(java: Java, kafka_jars: list[Path], tmp_path: Path) -> Iterator[LoginBroker]:
    store, certificate = self_signed(java, tmp_path, PASSWORD)
    plain, sasl, controller = free_ports(3)
    ports, protocols = {"PLAINTEXT": plain, "SASL": sasl}, {"PLAINTEXT": "PLAINTEXT"}
    properties = {
        **listener_properties(ports, {**protocols, "SASL": "SASL_SSL"}, controller),
        **keystore_properties("SASL", store, PASSWORD),
        "listener.name.sasl.sasl.enabled.mechanisms": SCRAM,
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{MODULE} required;",
    }
    with DevBroker(java=java, port=plain, properties=properties) as broker:
        yield LoginBroker(broker, f"{HOST}:{plain}", f"{HOST}:{sasl}", certificate)


@dataclass(frozen=True)
class Login:
    """The one user of the broker."""

    operator: KafkaAdminClient

    def allow(self) -> None:
        wanted = UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_256, PASSWORD)
        self.operator.alter_user_scram_credentials([wanted])

    def refuse(self) -> None:
        gone = UserScramCredentialDeletion(USER, ScramMechanism.SCRAM_SHA_256)
        self.operator.alter_user_scram_credentials([gone])


@pytest.mark.crash_matrix
@pytest.mark.timeout(900)
def test_a_login_that_is_refused_for_a_while(secured: LoginBroker, tmp_path: Path) -> None:
    """All connections are encrypted, and those of Spark's tasks, too."""
    shard = WholeShard(tmp_path, secured.plain, "app")
    with closing(KafkaAdminClient(bootstrap_servers=secured.plain)) as operator:
        login = Login(operator)
        login.allow()
        by_sasl = shard.config.read_text().replace(secured.plain, secured.sasl) + (
            f'[kafka.client]\nsecurity_protocol = "SASL_SSL"\nsasl_mechanism = "{SCRAM}"\n'
            f'sasl_plain_username = "{USER}"\nsasl_plain_password = "{PASSWORD}"\n'
            f'ssl_cafile = "{secured.authority}"\n'
        )
        shard.config.write_text(by_sasl)
        try:
            shard.start()
            login.refuse()
            # Connections of an accepted login last until the broker ends them.
            secured.broker.restart()
            shard.wait(lambda: bool(died(shard, "ingest")))
            assert "SaslAuthenticationFailed" in str(died(shard, "ingest")[0]["reason"])
            shard.kill("dequeue")
            # Once by our signal, then refused.
            shard.wait(lambda: len(died(shard, "dequeue")) > 1)
            login.allow()
            shard.deliver_one(b"after the refusal")
            assert shard.stop() == 0
        finally:
            shard.close()
