"""What deploys the service, without Docker and Kubernetes: it fits settings, commands and files."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from duewheel.cli import main as cli
from duewheel.config.keys_and_defaults import MetricsSection
from duewheel.config.settings import Settings, load
from duewheel.dev import broker
from duewheel.dev.jars import pinned
from duewheel.errors import Fenced
from duewheel.runtime import supervisor
from duewheel.serve.gate import hosts_of

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = YAML(typ="safe").load(ROOT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"] == "duewheel"]
INSTRUCTIONS = [
    line.split(maxsplit=1)
    for line in (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    if line and not line.startswith("#")
]

# Variables that are no settings: where the settings file is, and where downloads are.
BESIDE = {"DUEWHEEL_CONFIG", "DUEWHEEL_CACHE_DIR"}


def last_stage() -> list[list[str]]:
    start = max(i for i, (word, _) in enumerate(INSTRUCTIONS) if word == "FROM")
    return INSTRUCTIONS[start:]


def image_environment() -> dict[str, str]:
    words = [w for word, rest in last_stage() if word == "ENV" for w in shlex.split(rest)]
    return dict(word.split("=", 1) for word in words)


def settings_of(service: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Settings:
    """What duewheel reads in that container."""
    for variable in [name for name in os.environ if name.startswith("DUEWHEEL_")]:
        monkeypatch.delenv(variable)
    for name, value in (image_environment() | SERVICES[service]["environment"]).items():
        if name.startswith("DUEWHEEL_"):
            assert name in BESIDE or "__" in name, f"{name} would be passed over in silence"
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    return load()


@pytest.mark.parametrize("service", OURS)
def test_settings_are_known(service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = settings_of(service, monkeypatch, tmp_path)
    assert settings.timer.topics == ("orders.delayed",)
    assert settings.timer.mapping == {"orders.delayed": "orders"}
    assert settings.timer.reply_topic == "orders.replies"
    assert settings.timer.contracts["orders.delayed"].recurring
    assert settings.ingest.spark_master == "local[2]", "else a process for each of the host's CPUs"
    mounted = [volume.split(":") for volume in SERVICES[service]["volumes"]]
    assert len(mounted) == 1
    for volume, path, *_ in mounted:
        assert volume in COMPOSE["volumes"]
        assert settings.storage.data_dir.parent == Path(path)


def parses(command: list[str]) -> None:
    """The command line exists; a wrong option raises."""
    known = cli.cli.commands[command[0]]
    known.make_context(command[0], command[1:])


def test_commands_are_known() -> None:
    assert sorted(OURS) == ["duewheel", "init", "serve"]
    for service in OURS:
        parses(SERVICES[service]["command"])
    commands = {word: rest for word, rest in last_stage() if word in {"ENTRYPOINT", "CMD"}}
    assert json.loads(commands["ENTRYPOINT"]) == ["duewheel"]
    parses(json.loads(commands["CMD"]))
    (check,) = (rest for word, rest in last_stage() if word == "HEALTHCHECK")
    program, *words = json.loads(check[check.index("[") :])
    assert program == "duewheel"
    parses(words)


def test_parts_start_in_order() -> None:
    waits = {name: service.get("depends_on") for name, service in SERVICES.items()}
    assert waits["init"] == {"kafka": {"condition": "service_healthy"}}
    assert waits["duewheel"] == {"init": {"condition": "service_completed_successfully"}}
    assert "healthcheck" in SERVICES["kafka"]
    profiles = {name: service.get("profiles") for name, service in SERVICES.items()}
    assert {name: found for name, found in profiles.items() if found} == {
        "serve": ["page"],
        "kafka-ui": ["ui"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }


def test_prometheus_scrapes_both_processes_under_the_name_that_alerts_expect() -> None:
    folder = ROOT / "deploy" / "prometheus"
    config = YAML(typ="safe").load(folder / "prometheus.yml")
    assert all((folder / name).exists() for name in config["rule_files"])
    job, beside = config["scrape_configs"]
    (targets,) = job["static_configs"]
    environment = SERVICES["duewheel"]["environment"]
    assert job["job_name"] == "duewheel"
    assert targets["labels"] == {"shard": "0"}
    ports = [environment[f"DUEWHEEL_METRICS__{name}_PORT"] for name in ("INGEST", "DEQUEUE")]
    assert targets["targets"] == [f"duewheel:{port}" for port in ports]
    assert environment["DUEWHEEL_METRICS__HOST"] == "0.0.0.0"
    (found,) = beside["dns_sd_configs"]
    labels = {each["target_label"]: each["replacement"] for each in beside["relabel_configs"]}
    address = labels.pop("__address__")
    assert (found["names"], address) == (["serve"], f"serve:{found['port']}")
    assert labels == {"shard": "0", "job": job["job_name"], "endpoint": "http"}


def test_the_connections_have_every_port_of_metrics_and_a_first_shard_opens_its_own() -> None:
    """Without its port ingest's metrics, of the disk and of rejections, cannot be read."""
    ports = {key for key in MetricsSection.model_fields if key.endswith("_port")}
    page = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    table = page.partition("## Connections")[2].partition("\n## ")[0]
    assert ports == set(re.findall(r"`metrics\.(\w+_port)`", table))
    start = (ROOT / "docs" / "quickstart.md").read_text("utf-8")
    assert ports - {"relay_port"} == set(re.findall(r"^(\w+_port) =", start, re.MULTILINE))


def test_the_page_only_reads_and_is_for_this_host_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service, settings = SERVICES["serve"], settings_of("serve", monkeypatch, tmp_path)
    assert service["ports"] == [f"127.0.0.1:{settings.serve.port}:{settings.serve.port}"]
    (volume,) = service["volumes"]
    assert volume.endswith(":ro") and settings.serve.token_file is None
    assert hosts_of(settings.serve) == frozenset(("localhost", "127.0.0.1", "::1", "serve"))
    assert settings.metrics.host in SERVICES, "the lateness is asked for there"
    (url,) = re.findall(r"http://[^']*", " ".join(service["healthcheck"]["test"]))
    assert url == f"http://localhost:{settings.serve.port}/livez"


def test_mounted_files_are_there() -> None:
    mounts = [
        volume.split(":") for service in SERVICES.values() for volume in service.get("volumes", [])
    ]
    for source, *_ in mounts:
        assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    assert len(mounts) > 5


# ---- systemd ------------------------------------------------------------------------------------


UNITS = ROOT / "deploy" / "systemd"
PROGRAMS = {"duewheel@.service": "run", "duewheel-serve@.service": "serve"}


def unit(name: str, section: str) -> dict[str, list[str]]:
    """The values of each key; a key may occur several times."""
    found: dict[str, list[str]] = {}
    text = (UNITS / name).read_text().partition(f"[{section}]\n")[2].partition("\n[")[0]
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_unit_runs_its_command_with_known_settings(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = unit(name, "Service")
    settings = tmp_path / "duewheel.toml"
    settings.write_text('[timer]\ntopics = ["a"]\n[shard]\ncount = 4\n')
    for variable in [name for name in os.environ if name.startswith("DUEWHEEL_")]:
        monkeypatch.delenv(variable)
    for pair in service["Environment"]:
        key, _, value = pair.partition("=")
        monkeypatch.setenv(key, value.replace("%i", "3").replace("%S", str(tmp_path)))
    monkeypatch.setenv("DUEWHEEL_CONFIG", str(settings))
    found = load()
    assert found.shard.index == 3
    assert found.storage.data_dir == tmp_path / "duewheel" / "3" / "data"
    program, *words = shlex.split(service["ExecStart"][0])
    assert (Path(program).name, words) == ("duewheel", [PROGRAMS[name]])
    parses(words)


def test_the_unit_leaves_a_shard_to_the_host_that_has_taken_it_over() -> None:
    service = unit("duewheel@.service", "Service")
    assert service["StateDirectory"] == ["duewheel/%i"]
    assert service["Restart"] == ["on-failure"]
    assert service["RestartPreventExitStatus"] == [str(Fenced.exit_code)]
    assert float(service["TimeoutStopSec"][0]) > 2 * supervisor.STOP_S


def test_the_unit_of_the_page_has_the_rights_of_the_shard_s_or_less() -> None:
    ours, page = (unit(name, "Service") for name in PROGRAMS)
    confined = re.compile(r"^(Protect|Private|Restrict(?!Prevent)|NoNew|Capability|System|UMask)")
    for key in filter(confined.match, ours):
        assert set(" ".join(page[key]).split()) <= set(" ".join(ours[key]).split()), key
    assert "StateDirectory" not in page, "which would make the folder writable"


@pytest.mark.parametrize("name", PROGRAMS)
def test_systemd_takes_the_units(
    name: str, require: Callable[[object, str], None], tmp_path: Path
) -> None:
    require(shutil.which("systemd-analyze"), "no systemd-analyze")
    instance = tmp_path / name.replace("@", "@0")
    # The program need not be installed here.
    text = (UNITS / name).read_text()
    instance.write_text(text.replace("/opt/duewheel/bin/duewheel", sys.executable))
    run = subprocess.run(
        ["systemd-analyze", "verify", instance], capture_output=True, text=True, check=False
    )
    ours = [line for line in run.stderr.splitlines() if instance.stem in line]
    assert ours == []


# ---- Kafka and the image ------------------------------------------------------------------------


def test_kafka_is_set_up_as_the_development_broker_is() -> None:
    kafka = {name: str(value) for name, value in SERVICES["kafka"]["environment"].items()}
    text = Path(broker.__file__).with_name("broker.properties").read_text()
    found = dict(line.split("=", 1) for line in text.splitlines() if re.match(r"[a-z]", line))
    wanted = {
        f"KAFKA_{name.upper().replace('.', '_')}": value
        for name, value in found.items()
        if re.search(r"replication\.factor$|min\.isr$|^process|^node|listener\.names?$", name)
        or name in {"auto.create.topics.enable", "num.partitions"}
    }
    assert len(wanted) >= 10
    assert {name: kafka.get(name) for name in wanted} == wanted
    assert len(kafka["CLUSTER_ID"]) == 22
    (version,) = (
        jar.coordinate.rpartition(":")[2]
        for jar in pinned()
        if "org.apache.kafka:kafka_2" in jar.coordinate
    )
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{version}"


def test_kafka_is_where_the_others_look_for_it() -> None:
    kafka = SERVICES["kafka"]["environment"]
    listeners = dict(re.findall(r"(\w+)://:(\d+)", kafka["KAFKA_LISTENERS"]))
    advertised = dict(re.findall(r"(\w+)://([\w:]+)", kafka["KAFKA_ADVERTISED_LISTENERS"]))
    secured = dict(re.findall(r"(\w+):(\w+)", kafka["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"]))
    assert set(listeners) == {*advertised, "CONTROLLER"} == set(secured)
    assert all(advertised[name].endswith(f":{listeners[name]}") for name in advertised)
    assert kafka["KAFKA_CONTROLLER_QUORUM_VOTERS"].endswith(f"@kafka:{listeners['CONTROLLER']}")
    inside = advertised[kafka["KAFKA_INTER_BROKER_LISTENER_NAME"]]
    assert SERVICES["duewheel"]["environment"]["DUEWHEEL_KAFKA__BOOTSTRAP_SERVERS"] == inside
    assert SERVICES["kafka-ui"]["environment"]["KAFKA_CLUSTERS_0_BOOTSTRAPSERVERS"] == inside
    assert all(
        port.startswith("127.0.0.1:")
        for service in SERVICES.values()
        for port in service.get("ports", [])
    )


def test_image_is_built_from_files_that_are_there() -> None:
    patterns = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")
    ]
    sources = [
        source
        for word, rest in INSTRUCTIONS
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert {"requirements.txt", "src", "wheel"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists()
        assert any(fnmatch.fnmatch(source, pattern) for pattern in patterns), source


def test_image_runs_as_nobody_special_and_installs_only_what_is_hashed() -> None:
    (uid,) = re.findall(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())
    # A number: with a name Kubernetes refuses the pod under runAsNonRoot.
    assert [rest for word, rest in last_stage() if word == "USER"] == [uid] and int(uid) > 0
    environment = image_environment()
    assert environment["PYTHONSAFEPATH"] == "1"
    assert "PYTHONPATH" not in environment
    runs = " ".join(rest for word, rest in INSTRUCTIONS if word == "RUN")
    installs = re.findall(r"pip install (.*?)(?:&&|$)", runs)
    assert installs
    assert all("--require-hashes" in i or "--no-index" in i for i in installs)
