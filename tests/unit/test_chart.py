"""deploy/chart, without Helm: its values, its settings and its commands.

`make chart` renders it and validates the result, where there is Helm or Go to build it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from duewheel import __version__
from duewheel.cli.main import cli
from duewheel.config.settings import load
from duewheel.runtime import supervisor

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "chart"
TEMPLATES = {path.name: path.read_text("utf-8") for path in (CHART / "templates").iterdir()}
TEXT = "".join(TEMPLATES.values())
VALUES_TEXT = (CHART / "values.yaml").read_text("utf-8")
VALUES: dict[str, Any] = YAML(typ="safe").load(VALUES_TEXT)
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))


def used() -> set[str]:
    return set(re.findall(r"\.Values\.([\w.]+)", TEXT))


def test_versions_are_those_of_the_package() -> None:
    chart = YAML(typ="safe").load(CHART / "Chart.yaml")
    assert chart["appVersion"] == chart["version"] == __version__


def test_templates_use_values_that_exist() -> None:
    for path in used():
        value: Any = VALUES
        for key in path.split("."):
            assert key in value, path
            value = value[key]


def test_every_value_is_used() -> None:
    def unused(table: dict[str, Any], prefix: str = "") -> list[str]:
        found = []
        for key, value in table.items():
            path = f"{prefix}{key}"
            if path in used():
                continue
            below = unused(value, f"{path}.") if isinstance(value, dict) and value else [path]
            found += below
        return found

    assert unused(VALUES) == []


def test_the_schema_has_the_values_and_no_others() -> None:
    """A misspelt value would be ignored without a word."""
    jsonschema.validate(VALUES, SCHEMA)

    def compare(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        schema = SCHEMA["$defs"].get(schema.get("$ref", "").rpartition("/")[2], schema)
        if schema.get("additionalProperties", True) is not False:
            return
        unset = {"claims"} | ({"global"} if not path else set())
        assert values.keys() <= schema["properties"].keys() <= values.keys() | unset, path
        for key, value in values.items():
            if isinstance(value, dict):
                compare(value, schema["properties"][key], f"{path}.{key}")

    compare(VALUES, SCHEMA, "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"shardz": 3},
        {"shards": 0},
        {"shards": "3"},
        {"resources": {"limts": {"memory": "4Gi"}}},
        {"storage": {**VALUES["storage"], "accessModes": ["ReadWriteMany"]}},
        {"storage": {**VALUES["storage"], "size": "..."}},
        {"storage": {**VALUES["storage"], "size": "20"}},
        {"storage": {**VALUES["storage"], "size": "0Gi"}},
        {"storage": {**VALUES["storage"], "size": "00.0Gi"}},
        {"storage": {**VALUES["storage"], "size": "100Mi"}},  # less than storage.min_free
        {"storage": {**VALUES["storage"], "size": "0256.0Mi"}},
        {"storage": {**VALUES["storage"], "size": "0.25Gi"}},
        {"terminationGracePeriodSeconds": int(supervisor.STOP_S)},
        {"image": {**VALUES["image"], "tag": "bad tag"}},
        {"image": {**VALUES["image"], "tag": "-1"}},
        {"storage": {**VALUES["storage"], "storageClassName": ""}},
        {"page": {**VALUES["page"], "readToken": "secret"}},
        {"page": {**VALUES["page"], "readToken": {"secret": "readers", "key": ""}}},
        {"config": " \n"},
        {"image": {**VALUES["image"], "digest": "sha256:ab"}},
        {"podDisruptionBudget": {"enabled": True, "maxUnavailable": "never"}},
        {"podDisruptionBudget": {"enabled": True, "maxUnavailable": 0}},
        {"podDisruptionBudget": {"enabled": True, "maxUnavailable": "0%"}},
        {"environment": [{"name": "", "value": "1"}]},
        {"environment": [{"name": "DUEWHEEL_SHARD__COUNT", "value": "2"}]},
        {"volumes": [{"emptyDir": {}}]},
        {"networkPolicy": {"enabled": True, "from": [{}]}},
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**VALUES, **wrong}, SCHEMA)


@pytest.mark.parametrize(
    "right",
    [
        {"image": {**VALUES["image"], "digest": "sha256:" + 64 * "0"}},
        {"storage": {**VALUES["storage"], "size": "0.5Ti"}},
        {"storage": {**VALUES["storage"], "size": "0.5G"}},
        {"storage": {**VALUES["storage"], "size": "512Mi"}},
        {"storage": {**VALUES["storage"], "size": "1500M"}},
        {"storage": {**VALUES["storage"], "size": "1.25Gi"}},
        {"terminationGracePeriodSeconds": int(supervisor.STOP_S) + 2},
        {"image": {**VALUES["image"], "tag": "0.1.0-rc.1_a"}},
        {"podDisruptionBudget": {"enabled": True, "maxUnavailable": "50%"}},
        {"environment": [{"name": "DUEWHEEL_TIMER__MARGIN", "value": "2s"}]},
    ],
)
def test_right_values_are_taken(right: dict[str, Any]) -> None:
    jsonschema.validate({**VALUES, **right}, SCHEMA)


def test_the_variables_of_the_chart_are_not_given_twice() -> None:
    """Kubernetes takes the last one, or refuses both."""
    names = SCHEMA["properties"]["environment"]["items"]["properties"]["name"]["not"]["enum"]
    assert names == sorted(re.findall(r"- name: (DUEWHEEL_\w+)", TEMPLATES["_helpers.tpl"]))


def test_delimiters_are_balanced() -> None:
    for name, text in TEMPLATES.items():
        assert text.count("{{") == text.count("}}"), name
        opened = len(re.findall(r"\{\{-? *(?:if|with|range|define)\b", text))
        assert opened == len(re.findall(r"\{\{-? *end\b", text)), name


def test_settings_are_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in [name for name in os.environ if name.startswith("DUEWHEEL_")]:
        monkeypatch.delenv(variable)
    given = re.findall(
        r"- name: (DUEWHEEL_\w+)\n *value(?:From:\n *fieldRef|From:\n.*\n.*\n *key)?:(.*)\n",
        TEMPLATES["_helpers.tpl"],
    )
    names = {"shards": "3", "ingestPort": "9464", "dequeuePort": "9465"}
    names |= {"tasks": "local[2]", "page.port": "8466", "openReads": "false"}
    names |= {"servers": "http://a:1"}
    for name, value in given:
        words = [names[word] for word in names if word in value]
        monkeypatch.setenv(name, words[0] if words else value.strip() or "1")
    settings = tmp_path / "duewheel.toml"
    settings.write_text(VALUES["config"])
    monkeypatch.setenv("DUEWHEEL_CONFIG", str(settings))
    found = load()
    assert (found.shard.index, found.shard.count) == (1, 3)
    assert found.ingest.spark_master == "local[2]"
    assert str(found.storage.data_dir) == "/var/lib/duewheel/data"
    assert found.metrics.host == "0.0.0.0"
    assert (found.serve.host, found.serve.port) == ("0.0.0.0", VALUES["page"]["port"])
    assert found.serve.token_file and found.serve.read_token_file
    assert "shards: {{ .Values.shards | quote }}" in TEMPLATES["configmap.yaml"]
    assert 'servers: {{ include "duewheel.servers" . | quote }}' in TEMPLATES["configmap.yaml"]
    assert len(given) == 15


def test_commands_are_known() -> None:
    text = TEMPLATES["statefulset.yaml"]
    init = ["--partitions=4", "--replication-factor=3"]
    assert re.findall(r"- (--[\w-]+)=", text) == [each.partition("=")[0] for each in init]
    cli.commands["init"].make_context("init", init)
    assert "args: [run]" in text
    assert "command: [duewheel, health]" in text
    assert "args: [serve]" in TEMPLATES["_helpers.tpl"]
    assert 'args: [reshard, "--to={{ .Values.shards }}"]' in TEMPLATES["reshard.yaml"]
    cli.commands["reshard"].make_context("reshard", ["--to=4"])
    for command in ("run", "health", "serve"):
        cli.commands[command].make_context(command, [])


def test_a_pod_has_the_time_that_a_stop_takes() -> None:
    assert VALUES["terminationGracePeriodSeconds"] > 2 * supervisor.STOP_S


def test_the_user_is_that_of_the_image() -> None:
    (uid,) = set(re.findall(r"--uid (\d+)", (ROOT / "Dockerfile").read_text()))
    security = VALUES["podSecurityContext"]
    assert {security[key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {int(uid)}


def test_files_are_those_beside_the_chart() -> None:
    for path in (CHART / "files").iterdir():
        assert path.is_symlink()
        assert path.resolve().is_relative_to(ROOT / "deploy")
