"""Values by the schemas of a registry, from the timer topic to every view: of a server of the test
that answers as Confluent's API is documented; and of Apicurio, which Maven brings.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.harness.config_file import write_config
from tests.harness.launcher import objects, run, wait_until
from tests.harness.schema_registry import (
    ORDER_AVRO,
    ORDER_JSON,
    avro,
    framed,
    orders_descriptor,
    schema_registry,
)
from tests.harness.served import served
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard

from duewheel.config.settings import load
from duewheel.dev.listeners import HOST, free_ports
from duewheel.osutil.child_process import Child
from duewheel.schemas.wire.single_record import Header

pytestmark = pytest.mark.kafka

APICURIO = "io.apicurio:apicurio-registry-app:3.3.2:tar.gz:all"
JAVA_MIN = 21  # Apicurio's
KEPT = Path(__file__).resolve().parents[2] / "build" / "apicurio"
START_S = 120

Require = Callable[[object, str], None]
Register = Callable[[str, str | None], int]  # a schema and its kind → its number
Served = tuple[str, Register]  # the address, too

ORDERS = {
    "avro": (json.dumps(ORDER_AVRO), None, avro({"number": 7})),
    "json": (json.dumps(ORDER_JSON), "JSON", b'{"number": 7}'),
    "protobuf": (orders_descriptor(), "PROTOBUF", b"\0\x08\x07"),
}


@pytest.fixture
def documented() -> Iterator[Served]:
    with schema_registry() as server:

        def register(schema: str, kind: str | None) -> int:
            number = len(server.schemas) + 1
            server.add(number, schema, kind)
            return number

        yield server.url, register


@pytest.fixture
def apicurio(require: Require, tmp_path: Path) -> Iterator[Served]:
    """Its archive stays in build/: 150 MB."""
    java = newer_java()
    require(java, f"no Java from {JAVA_MIN} on")
    archive = KEPT / "apicurio-registry-app-3.3.2-all.tar.gz"
    if not archive.exists():
        maven = shutil.which("mvn")
        require(maven, "Maven is not installed")
        command = [str(maven), "-q", "-B", "dependency:copy", f"-Dartifact={APICURIO}"]
        done = subprocess.run([*command, f"-DoutputDirectory={KEPT}"], check=False)
        require(done.returncode == 0, "Maven cannot fetch Apicurio")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "apicurio", filter="data")
    (port,), log = free_ports(1), tmp_path / "apicurio.log"
    options = ["-Xmx512m", f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={port}"]
    jar = tmp_path / "apicurio" / "quarkus-run.jar"
    with log.open("wb") as output:
        server = Child([str(java), *options, "-jar", str(jar)], stdout=output, stderr=output)
    url = f"http://{HOST}:{port}/apis/ccompat/v7"

    def register(schema: str, kind: str | None) -> int:
        body = {"schema": schema} | ({} if kind is None else {"schemaType": kind})
        answer = call(f"{url}/subjects/{kind}-value/versions", json.dumps(body).encode())
        return int(answer["id"])

    try:
        wait_until(lambda: answers(f"{url}/subjects"), log.read_text, seconds=START_S)
        yield url, register
    finally:
        server.stop(30)


def newer_java() -> Path | None:
    for java in sorted(Path("/usr/lib/jvm").glob("*/bin/java")):
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
        version = re.search(r'version "(\d+)', told.stderr)
        if version and int(version[1]) >= JAVA_MIN:
            return java
    return None


def call(url: str, body: bytes | None = None) -> Any:
    kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, kind), timeout=30) as answer:
        return json.load(answer)


def answers(url: str) -> bool:
    try:
        return bool(call(url) == [])
    except OSError:
        return False


@pytest.fixture(params=["documented", pytest.param("apicurio", marks=pytest.mark.crash_matrix)])
def registry(request: pytest.FixtureRequest) -> Served:
    found: Served = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def config(
    broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str], registry: Served
) -> Path:
    name = unique_name("app")[-40:].lstrip("-")
    demanded = {"topic": {f"{name}.timers": {"value_schema": "registry"}}}
    return write_config(
        tmp_path,
        broker.bootstrap_servers,
        name,
        timer=demanded,
        registry={"url": registry[0]},
        serve={"show_bodies": True},
    )


@pytest.mark.slow
def test_values_are_shown_and_checked_by_their_schemas(config: Path, registry: Served) -> None:
    _, register = registry
    known = {name: (register(text, kind), body) for name, (text, kind, body) in ORDERS.items()}
    values: dict[str, bytes | None] = {
        name: framed(number, body) for name, (number, body) in known.items()
    }
    values |= {"unknown": framed(7_777, b"x"), "null": None, "plain": b'{"number": 7}'}
    kinds = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
    by = {name: f"{kinds[name]} schema {number}" for name, (number, _) in known.items()}
    settings = load(config)
    with closing(SparklessShard(settings, 1)) as shard:
        for name, value in values.items():
            headers: list[Header] = [
                *(("UNIQ_KEY", name.encode()), ("TIMER_DELAY_SEC", b"3600")),
                ("REAL_TOPIC", shard.target.encode()),
            ]
            shard.send(shard.timers, 0, (name.encode(), value, headers))
        while not shard.letters():
            shard.pump()

        for name in kinds:
            _, (timer,) = objects(config, "show", "--id", name, "--body")
            assert json.loads(timer["decoded"])["number"] == 7
            assert timer["decoded_by"] == by[name]
        _, (timer,) = objects(config, "show", "--id", "unknown", "--body")
        assert timer["not_decoded"] == "the registry has no schema 7777"
        assert timer["value"] == "\0\0\0\x1eax"
        assert "decoded_by" in run(config, "show", "--id", "avro", "--body").stdout
        _, (timer,) = objects(config, "show", "--id", "avro")
        assert timer.keys().isdisjoint({"value", "decoded"})

        _, rows = objects(config, "topic", "read", shard.timers)
        assert {row["key"]: row["decoded_by"] for row in rows if "decoded" in row} == by
        text = run(config, "topic", "read", shard.timers).stdout
        assert '{"number": 7, "note": null}' in text
        assert "(the registry has no schema 7777)" in text

        (letter,) = shard.letters()
        assert (letter.key, letter.value) == (b"plain", values["plain"])
        assert dict(letter.headers)["TIMER_ERROR_CODE"] == b"no_schema_number"
        with served(settings) as client:
            check_api(client, by)

        code, (found,) = objects(config, "audit")
        of_values, of_registry = found["topic_suites"][shard.timers]
        assert (code, of_values["code"]) == (1, "value_not_decoded")
        assert (of_registry["code"], of_registry["success"]) == ("registry_unavailable", True)
        assert (of_values["rows"], of_values["examples"]) == (4, [f"{shard.timers}-0@6"])


def check_api(client: TestClient, by: dict[str, str]) -> None:
    timers = client.get("/v1/timers").json()["timers"]
    assert {timer["id"] for timer in timers} == {*by, "unknown", "null"}
    shown = {each["id"]: client.get(f"/v1/timers/{each['handle']}").json() for each in timers}
    assert {name: shown[name]["decoded_by"] for name in by} == by
    assert shown["unknown"]["not_decoded"] == "the registry has no schema 7777"
    assert shown["null"]["decoded"] is shown["null"]["not_decoded"] is None
    letter = client.get("/v1/dead-letters/0/0").json()
    assert (letter["value"], letter["decoded"]) == ('{"number": 7}', None)


def test_a_registry_that_is_away_hides_nothing(
    broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    name = unique_name("app")[-40:].lstrip("-")
    (port,) = free_ports(1)
    away = {"url": f"http://{HOST}:{port}"}
    config = write_config(tmp_path, broker.bootstrap_servers, name, registry=away)
    with closing(SparklessShard(load(config), 1)) as shard:
        shard.send(shard.target, 0, (b"k", framed(1, b"body"), []), (b"k", b"plain", []))
        code, rows = objects(config, "topic", "read", shard.target)
    assert [row["value"] for row in rows] == ["\0\0\0\0\1body", "plain"]
    refused = "the registry does not answer: Connection refused"
    assert (code, [row.get("not_decoded") for row in rows]) == (0, [refused, None])
