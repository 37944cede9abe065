"""`duewheel doctor` with authentication: missing rights, and exactly the required ones.

One broker, whose operator comes by a listener without security, and duewheel by SASL. A third
listener tells its clients an address at which nobody listens.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from tests.harness.config_file import write_config
from tests.harness.deliveries import rows
from tests.harness.examining import CLOCK, errors, examined, only, settings_for
from tests.harness.launcher import run, wait_until
from tests.harness.publishing import publish_rows

from duewheel import factory
from duewheel.cli import examination
from duewheel.cli.examination import exit_code, report
from duewheel.cli.output import Printer
from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.dev.broker import DevBroker
from duewheel.dev.listeners import HOST, addresses, free_ports, listener_properties
from duewheel.dev.sasl_ssl import password_properties
from duewheel.doctor import findings
from duewheel.errors import DuewheelError
from duewheel.java.find import Java
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.runtime.dequeue_process import init_progress
from duewheel.schemas.batches import Deliveries
from duewheel.wheel.dequeue.requeue import rolled_copies
from duewheel.wheel.publisher_protocol import publish_progress

pytestmark = [pytest.mark.kafka, pytest.mark.crash_matrix]

USER, PASSWORD = "duewheel", "hunter2"
ROLES = ("dead-letter", "reply", "receipts", "state")
OPERATIONS = {"".join(part.title() for part in op.name.split("_")): op.name for op in ACLOperation}
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
# Principal, resource, operations: those of one principal that does all but `prove`.
TABLE = [
    row
    for row in re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    if row[0].startswith(("duewheel", "`init`", "`doctor`", "`dlq`", "`cancel`", "`receipts`"))
]
LITERAL, PREFIXED = ACLResourcePatternType.LITERAL, ACLResourcePatternType.PREFIXED
ANYTHING = ACLOperation.ANY


@dataclass(frozen=True)
class Secured:
    """The broker by its three listeners."""

    plain: str
    sasl: str
    astray: str
    nobody: str


@pytest.fixture(scope="module")
def secured(java: Java, kafka_jars: list[Path]) -> Iterator[Secured]:
    plain, sasl, astray, controller, nobody = free_ports(5)
    ports = {"PLAINTEXT": plain, "SASL": sasl, "ASTRAY": astray}
    protocols = {"PLAINTEXT": "PLAINTEXT", "SASL": "SASL_PLAINTEXT", "ASTRAY": "PLAINTEXT"}
    properties = {
        **listener_properties(ports, protocols, controller),
        "advertised.listeners": addresses({**ports, "ASTRAY": nobody}),
        **password_properties("SASL", USER, PASSWORD),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "transaction.max.timeout.ms": "60000",
    }
    with DevBroker(java=java, port=plain, properties=properties):
        yield Secured(*(f"{HOST}:{port}" for port in (plain, sasl, astray, nobody)))


@pytest.fixture
def operator(secured: Secured) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=secured.plain)) as client:
        yield client


@pytest.fixture
def settings(secured: Secured, tmp_path: Path) -> Settings:
    return by_sasl(secured, tmp_path, f"app-{uuid.uuid4().hex[:8]}", PASSWORD)


def by_sasl(secured: Secured, path: Path, name: str, password: str, **sections: Any) -> Settings:
    client = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": USER,
        "sasl_plain_password": password,
    }
    kafka = {"bootstrap_servers": secured.sasl, "client": client}
    settings = settings_for(path, "", name, kafka=kafka, **sections)
    services = {f"{role}_topic": f"{name}.{role}" for role in ("receipts", "reply")}
    timer = settings.timer.model_copy(update=services)
    return settings.model_copy(update={"timer": timer})


def documented(settings: Settings) -> list[tuple[ResourcePattern, str]]:
    """The rights of docs/security.md."""
    app, (timers,) = settings.app.id, settings.timer.topics
    own = {f"{app}.{role}" for role in ROLES} | {timers}
    topic, exact = ResourceType.TOPIC, LITERAL
    scratch = f"{app}.doctor."
    services = {f"{app}.{role}" for role in ("dead-letter", "reply", "receipts")}
    ids = (ResourceType.TRANSACTIONAL_ID, {f"{app}."}, PREFIXED)
    patterns = {
        ("duewheel", "timer topics"): (topic, {timers}, exact),
        ("duewheel", "state topic"): (topic, {f"{app}.state"}, exact),
        ("duewheel", "each target topic"): (topic, {f"{app}.orders"}, exact),
        ("duewheel", "dead-letter, reply and receipts topic"): (topic, services, exact),
        ("duewheel", "transactional ids beginning with `<app.id>.`"): ids,
        ("`init`", "duewheel's topics"): (topic, own, exact),
        ("`init`, `reshard`: more shards", "state topic"): (topic, {f"{app}.state"}, exact),
        ("`doctor`", "topics beginning with `<app.id>.doctor.`"): (topic, {scratch}, PREFIXED),
        ("`doctor`", "groups beginning with `<app.id>.doctor.`"): (
            ResourceType.GROUP,
            {scratch},
            PREFIXED,
        ),
        ("`doctor`", "the cluster"): (ResourceType.CLUSTER, {"kafka-cluster"}, exact),
        ("`dlq`", "dead-letter topic"): (topic, {f"{app}.dead-letter"}, exact),
        ("`cancel`, `reschedule`, `schedule`, `serve`", "reply topic"): (
            topic,
            {f"{app}.reply"},
            exact,
        ),
        ("`receipts`, `serve`", "receipts topic, whose keys are the ids of delivered timers"): (
            topic,
            {f"{app}.receipts"},
            exact,
        ),
    }
    rights = []
    for who, resource, operations in TABLE:
        kind, names, pattern = patterns.pop((who, resource))
        given = operations.partition(";")[0]
        granted = " ".join(
            OPERATIONS[each] for each in re.findall(r"[A-Z]\w+", given) if each in OPERATIONS
        )
        rights += [(ResourcePattern(kind, name, pattern), granted) for name in names]
    assert not patterns, "each has a row"
    return rights


def grant(operator: KafkaAdminClient, rights: list[tuple[ResourcePattern, str]]) -> None:
    allow = ACLPermissionType.ALLOW
    operator.create_acls(
        [
            ACL(f"User:{USER}", "*", ACLOperation[name], allow, pattern)
            for pattern, names in rights
            for name in names.split()
        ]
    )


def begin(settings: Settings, operator: KafkaAdminClient) -> list[tuple[ResourcePattern, str]]:
    """Gives the documented rights and makes the shard's topics and its target."""
    rights = documented(settings)
    grant(operator, rights)
    with KafkaAdmin({"bootstrap_servers": operator.config["bootstrap_servers"]}) as admin:
        admin.create_topic(f"{settings.app.id}.orders", 1)
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings)
    init_progress(settings)
    return rights


def revoke(operator: KafkaAdminClient, pattern: ResourcePattern, operation: ACLOperation) -> None:
    named = ResourcePatternFilter(
        pattern.resource_type, pattern.resource_name, pattern.pattern_type
    )
    anyone = ACLPermissionType.ANY
    operator.delete_acls([ACLFilter(f"User:{USER}", None, operation, anyone, named)])


def test_the_documented_rights_are_enough_and_each_is_missed(
    settings: Settings, operator: KafkaAdminClient
) -> None:
    rights = begin(settings, operator)
    (timers,), app = settings.timer.topics, settings.app.id
    found = examined(settings)
    assert errors(found) == set()
    codes = {f.code for f in found if f.severity == "warning"}
    assert codes <= {"durability", "clock_kept", "memory", "disk_space"}
    running = factory.publisher(settings, factory.StoppableClock(threading.Event()))
    try:
        progress = running.start()
        assert progress is not None
        publish_progress(running, progress)
    finally:
        running.close()

    patterns = {(p.resource_type, p.resource_name): p for p, _ in rights}
    topic = ResourceType.TOPIC
    revoke(operator, patterns[topic, f"{app}.doctor."], ACLOperation.DELETE)
    left = only(examined(settings), "scratch_topic")
    assert left.severity == "warning"
    assert left.remedy.endswith(f"--delete --topic {app}.doctor.0")
    with KafkaAdmin({"bootstrap_servers": operator.config["bootstrap_servers"]}) as admin:
        admin.delete_topics([f"{app}.doctor.0"])
    revoke(operator, patterns[topic, timers], ACLOperation.WRITE)
    revoke(operator, patterns[topic, settings.dead_letter_topic], ACLOperation.DESCRIBE_CONFIGS)
    revoke(operator, patterns[topic, f"{app}.orders"], ANYTHING)
    revoke(operator, patterns[topic, f"{app}.doctor."], ACLOperation.CREATE)
    revoke(operator, patterns[ResourceType.TRANSACTIONAL_ID, f"{app}."], ANYTHING)
    revoke(operator, patterns[ResourceType.CLUSTER, "kafka-cluster"], ANYTHING)
    found = examined(settings)
    assert errors(found) == {
        ("topic_rights", f"topic {timers}"),
        ("topic_rights", f"topic {app}.orders"),
        ("transactional_id", f"transactional id {app}.dequeue.0"),
    }
    lacking = only(found, "topic_rights", timers)
    assert f"User:{USER} lacks WRITE" in lacking.found
    assert f"--allow-principal User:{USER} --operation Write --topic {timers}" in lacking.remedy
    assert only(found, "topic_settings", settings.dead_letter_topic).severity == "warning"
    assert only(found, "broker_settings").severity == "warning"
    scratch = only(found, "scratch_topic")
    assert scratch.severity == "warning"
    assert f"--create --topic {app}.doctor.0" in scratch.remedy

    # What the remedy says: an operator makes the topic, and gives the rights to the ids.
    with KafkaAdmin({"bootstrap_servers": operator.config["bootstrap_servers"]}) as admin:
        admin.create_topic(f"{app}.doctor.0", 1)
    (refused,) = [f for f in examined(settings) if f.code == "transactions"]
    assert refused.severity == "error"
    assert "TransactionalIdAuthorizationFailed" in refused.found
    ids = f"--operation Write --operation Describe --transactional-id {app}. "
    assert refused.remedy.endswith(f"{ids}--resource-pattern-type prefixed")
    assert f"{app}.doctor.0" in operator.list_topics()  # it is not the doctor's to delete


def one_of_each(settings: Settings) -> Deliveries:
    """A message for the target, a copy for the timer topic, and a dead letter."""
    (timers,), target = settings.timer.topics, f"{settings.app.id}.orders"
    sent = replace(rows([target] * 3, [0] * 3), source_partitions=[(timers, 0)])
    sent = replace(sent, dead_letter=np.array([False, False, True]))
    return rolled_copies(sent, np.array([False, True, False]))


def defect(settings: Settings) -> str:
    """What keeps this principal from delivering and reading; "" if nothing does."""
    publisher = factory.publisher(settings, factory.StoppableClock(threading.Event()))
    (timers,) = settings.timer.topics
    try:
        progress = publisher.start()
        assert progress is not None
        publish_progress(publisher, progress)
        aside = publish_rows(publisher, one_of_each(settings), progress)
        if aside.reasons or len(aside.letters) or len(aside.parked):
            return f"aside: {aside}"
        client = KafkaClients(settings.kafka.client_options("consumer"))
        with LogReader(client, [timers], partial(Deadline, 10)) as reader:
            found = list(reader.poll({(timers, 0): 0}))
            return "" if found else "nothing was read"
    except DuewheelError as error:
        return str(error)
    finally:
        publisher.close()


NEEDED = {
    "timers": [ACLOperation.READ, ACLOperation.WRITE],
    "dead-letter": [ACLOperation.WRITE],
    "state": [ACLOperation.READ, ACLOperation.WRITE],
    "orders": [ACLOperation.WRITE],
    "receipts": [ACLOperation.WRITE],
}


def test_without_any_of_the_rights_no_shard_delivers(
    settings: Settings, operator: KafkaAdminClient
) -> None:
    """One after the other is taken away and given back; DescribeConfigs only warns."""
    begin(settings, operator)
    app = settings.app.id
    assert defect(settings) == ""
    topic, ids = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
    taken = [
        *((ResourcePattern(topic, f"{app}.{n}"), op) for n, ops in NEEDED.items() for op in ops),
        (ResourcePattern(ids, f"{app}.", PREFIXED), ACLOperation.WRITE),
    ]
    for pattern, operation in taken:
        revoke(operator, pattern, operation)
        wait_until(lambda: defect(settings) != "", f"refused without {pattern} {operation}")
        grant(operator, [(pattern, operation.name)])
        wait_until(lambda: defect(settings) == "", f"delivered with {pattern} {operation}")


def test_a_wrong_password_is_no_absence(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = by_sasl(secured, tmp_path, "app", "hunter3", dequeue={"call_deadline": "4s"})
    assert report(examination.run(wrong, CLOCK), Printer(is_json=False)) == 1
    shown = capsys.readouterr().out
    assert "kafka_refuses" in shown
    assert f"does not accept user {USER!r} with this password" in shown
    assert "hunter3" not in shown


def test_an_advertised_address_at_which_nobody_listens(secured: Secured, tmp_path: Path) -> None:
    astray = settings_for(tmp_path, secured.astray, "app", dequeue={"call_deadline": "2s"})
    found = examined(astray)
    reachable = only(found, "broker_reachable")
    assert reachable.severity == "error"
    assert secured.nobody in reachable.found
    assert "advertised.listeners" in reachable.remedy
    assert exit_code(findings.summed_up(found)) == 3


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_proof_names_the_right_that_it_lacks(
    secured: Secured, tmp_path: Path, operator: KafkaAdminClient
) -> None:
    prefix = f"proof-{uuid.uuid4().hex[:8]}"
    client = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }
    config = write_config(tmp_path, secured.sasl, prefix, kafka={"client": client})
    short = ("--minutes", "0.1", "--timers", "600", "--kills", "1", "--seed", "3")
    words = ("prove", "--prefix", prefix, "--out", str(tmp_path / "prove.html"), *short)

    def topics() -> list[str]:
        return [name for name in operator.list_topics() if name.startswith(prefix)]

    refused = run(config, *words)
    assert refused.returncode == 2
    assert "the right Describe is needed" in refused.stderr and topics() == []

    own = ResourcePattern(ResourceType.TOPIC, f"{prefix}-", PREFIXED)
    grant(operator, [(own, "CREATE READ WRITE DESCRIBE_CONFIGS")])
    refused = run(config, *words)
    assert refused.returncode == 2
    assert "a proof needs DELETE" in refused.stderr
    (left,) = topics()
    assert "could not be deleted: delete it by hand" in refused.stderr and left in refused.stderr
    operator.delete_topics([left])

    grant(operator, [(own, "DELETE")])
    refused = run(config, *words)
    assert refused.returncode == 2
    assert "TransactionalIdAuthorizationFailed" in refused.stderr and topics() == []

    ids = ResourcePattern(ResourceType.TRANSACTIONAL_ID, f"{prefix}-", PREFIXED)
    grant(operator, [(ids, "WRITE")])
    held = run(config, *words)
    assert held.returncode == 0, held.stderr
    page = (tmp_path / "prove.html").read_text("utf-8")
    assert PASSWORD not in page and USER in page
    assert topics() == []
