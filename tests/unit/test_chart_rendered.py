"""deploy/chart, rendered by Helm and validated against Kubernetes' schemas.

`make chart` builds Helm where there is Go; without either these are skipped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML
from tests.harness.chart import (
    CHART,
    HELM,
    KUBERNETES,
    MISSING,
    ROOT,
    Manifests,
    environment,
    helm,
    rendered,
)

from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError, RecoveryRefused

ALL = [
    "metrics.serviceMonitor.enabled=true",
    "metrics.rules.enabled=true",
    "metrics.rules.runbookBase=https://docs.example/",
    "metrics.dashboard.enabled=true",
    "init.enabled=true",
    "init.partitions=6",
    "shards=3",
    f"image.digest=sha256:{64 * '0'}",
    "environment[0].name=DUEWHEEL_KAFKA__CLIENT__SASL_PLAIN_PASSWORD",
    "environment[0].valueFrom.secretKeyRef.name=kafka",
    "environment[0].valueFrom.secretKeyRef.key=password",
    "nodeSelector.disk=local",
    "storage.storageClassName=local",
    "serviceAccountName=kafka-user",
    "podAnnotations.team=orders",
    "page.enabled=true",
    "page.readToken.secret=readers",
    "page.changeToken.secret=operators",
    "page.changeToken.key=password",
    "page.from[0].podSelector.matchLabels.app=proxy",
    "networkPolicy.enabled=true",
    "networkPolicy.from[0].podSelector.matchLabels.app=prometheus",
]


@pytest.fixture(autouse=True)
def with_helm(require: Callable[[object, str], None]) -> None:
    require(HELM, MISSING)


def kinds_of_templates() -> set[str]:
    """By their text: a list here would be out of date unnoticed where there is no Helm."""
    texts = [path.read_text("utf-8") for path in (CHART / "templates").glob("*.yaml")]
    return set(re.findall(r"^kind: (\w+)$", "".join(texts), re.MULTILINE))


def pod(manifests: Manifests) -> dict[str, Any]:
    spec: dict[str, Any] = manifests["StatefulSet/orders-duewheel"]["spec"]["template"]["spec"]
    return spec


def containers(manifests: Manifests) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in pod(manifests)["containers"]}


def settings_of(
    manifests: Manifests, monkeypatch: pytest.MonkeyPatch, folder: Path, name: str = "duewheel"
) -> Settings:
    """What duewheel reads in that container of the pod of shard 2."""
    for variable in [name for name in os.environ if name.startswith("DUEWHEEL_")]:
        monkeypatch.delenv(variable)
    for variable, value in environment(manifests, containers(manifests)[name], 2).items():
        monkeypatch.setenv(variable, value)
    path = folder / "duewheel.toml"
    path.write_text(manifests["ConfigMap/orders-duewheel"]["data"]["duewheel.toml"])
    monkeypatch.setenv("DUEWHEEL_CONFIG", str(path))
    return load()


@pytest.mark.parametrize("values", [[], ALL], ids=["defaults", "all"])
def test_manifests_are_valid(values: list[str]) -> None:
    sets = [word for value in values for word in ("--set", value)]
    helm("lint", "--strict", "--kube-version", f"{KUBERNETES}.0", str(CHART), *sets)
    manifests = rendered(*values)
    for manifest in manifests.values():
        if "monitoring.coreos.com" not in manifest["apiVersion"]:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    kinds = kinds_of_templates()
    if not values:
        kinds -= {"ServiceMonitor", "PrometheusRule", "NetworkPolicy"}
    assert {manifest["kind"] for manifest in manifests.values()} == kinds


def test_a_pod_is_a_shard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manifests = rendered(*ALL)
    stateful = manifests["StatefulSet/orders-duewheel"]["spec"]
    found = settings_of(manifests, monkeypatch, tmp_path)
    assert stateful["replicas"] == found.shard.count == 3
    assert found.shard.index == 2
    container = containers(manifests)["duewheel"]
    mounts = {each["name"]: Path(each["mountPath"]) for each in container["volumeMounts"]}
    assert found.storage.data_dir.is_relative_to(mounts["data"])
    assert {each["metadata"]["name"] for each in stateful["volumeClaimTemplates"]} == {"data"}
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"ingest": found.metrics.ingest_port, "dequeue": found.metrics.dequeue_port}
    (init,) = pod(manifests)["initContainers"]
    assert init["args"] == ["init", "--partitions=6"]
    assert init["env"] == container["env"]
    assert container["image"] == f"duewheel@sha256:{64 * '0'}"


def test_the_page_is_beside_its_shard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manifests = rendered(*ALL)
    found = settings_of(manifests, monkeypatch, tmp_path, "serve")
    container = containers(manifests)["serve"]
    assert (container["args"], found.shard.index) == (["serve"], 2)
    assert container["ports"] == [{"name": "http", "containerPort": found.serve.port}]
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    shard = {each["name"]: each for each in containers(manifests)["duewheel"]["volumeMounts"]}
    assert mounts["data"]["mountPath"] == shard["data"]["mountPath"]
    assert mounts["data"]["readOnly"] is False, "a pause writes"
    volumes = {
        each["name"]: each["secret"] for each in pod(manifests)["volumes"] if "secret" in each
    }
    for path, name, secret, key in (
        (found.serve.read_token_file, "read-token", "readers", "token"),
        (found.serve.token_file, "change-token", "operators", "password"),
    ):
        assert path == Path(mounts[name]["mountPath"]) / "token"
        assert volumes[name]["secretName"] == secret
        assert volumes[name]["items"] == [{"key": key, "path": "token"}]
        assert volumes[name]["defaultMode"] == 0o440, "a warning else: others can read it"
    names = [f"orders-duewheel-{shard}.orders-duewheel" for shard in range(3)]
    assert manifests["StatefulSet/orders-duewheel"]["spec"]["serviceName"] == "orders-duewheel"
    assert found.serve.shards == tuple(f"http://{name}:{found.serve.port}" for name in names)
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["image"] == containers(manifests)["duewheel"]["image"]


def test_a_page_without_changes_has_the_volume_read_only() -> None:
    manifests = rendered("page.enabled=true", "page.openReads=true")
    data, *others = (
        each for each in containers(manifests)["serve"]["volumeMounts"] if each["name"] == "data"
    )
    assert data["readOnly"] is True and not others
    assert not [each for each in pod(manifests)["volumes"] if "secret" in each]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("page.enabled=true", "page.readToken.secret"),
        ("networkPolicy.enabled=true", "networkPolicy.from"),
        ("metrics.dequeuePort=9464", "metrics.dequeuePort"),
        ("page.enabled=true,page.openReads=true,page.port=9465", "page.port"),
        ("page.enabled=true,page.openReads=true,config=serve.tls_cert_file=''", "tls_cert_file"),
        ("config=nonsense", "config: toml: line 1"),
        ("shardz=3", "shardz"),
        ("resources.limts.memory=4Gi", "limts"),
    ],
)
def test_wrong_values_are_refused(value: str, named: str) -> None:
    """Such as a page that everybody could read."""
    words = ["template", "orders", str(CHART), "--kube-version", f"{KUBERNETES}.0", "--set", value]
    run = subprocess.run([str(HELM), *words], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert named in run.stderr


def test_the_network_policy_selects_the_pods() -> None:
    manifests = rendered(*ALL)
    labels = manifests["StatefulSet/orders-duewheel"]["spec"]["template"]["metadata"]["labels"]
    policy = manifests["NetworkPolicy/orders-duewheel"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    rule, of_page = policy["ingress"]
    named = {each["name"] for one in containers(manifests).values() for each in one["ports"]}
    assert {each["port"] for each in rule["ports"]} == named
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    assert of_page == {
        "ports": [{"port": "http"}],
        "from": [
            {"podSelector": {"matchLabels": {"app": "proxy"}}},
            {"podSelector": {"matchLabels": policy["podSelector"]["matchLabels"]}},
        ],
    }


def test_who_scrapes_does_not_open_a_page_without_a_token() -> None:
    """An endpoint of Prometheus that the policy keeps out would be down for ever."""
    manifests = rendered(*ALL, "page.readToken.secret=", "page.openReads=true", "shards=1")
    rule, of_page = manifests["NetworkPolicy/orders-duewheel"]["spec"]["ingress"]
    assert rule["ports"] == [{"port": "ingest"}, {"port": "dequeue"}]
    assert of_page["from"] == [{"podSelector": {"matchLabels": {"app": "proxy"}}}]
    monitor = manifests["ServiceMonitor/orders-duewheel"]["spec"]
    assert [each["port"] for each in monitor["endpoints"]] == ["ingest", "dequeue"]
    lonely = rendered(*ALL, "page.from=null", "shards=1")
    assert len(lonely["NetworkPolicy/orders-duewheel"]["spec"]["ingress"]) == 1


@pytest.mark.parametrize("name", ["StatefulSet/orders-duewheel", "Job/orders-duewheel-reshard"])
def test_a_pod_has_no_rights(name: str) -> None:
    spec = rendered(*ALL)[name]["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["serviceAccountName"] == "kafka-user"
    assert spec["nodeSelector"] == {"disk": "local"}
    assert spec["securityContext"]["runAsNonRoot"] is True
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert "livenessProbe" not in container or container["name"] == "serve"
    written = {each["name"] for each in spec["volumes"] if "emptyDir" in each}
    assert written == {"tmp"}


def test_an_upgrade_reshards_first_and_stops_at_a_refusal() -> None:
    manifests = rendered(*ALL)
    job, config = (manifests[f"{kind}/orders-duewheel-reshard"] for kind in ("Job", "ConfigMap"))
    notes = [each["metadata"]["annotations"] for each in (config, job)]
    for each in notes:
        assert each["helm.sh/hook"] == "pre-upgrade,pre-rollback"
        assert each["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    weights = [int(each.get("helm.sh/hook-weight", 0)) for each in notes]
    assert weights[0] < weights[1], "the Job mounts it"
    assert config["data"].items() <= manifests["ConfigMap/orders-duewheel"]["data"].items()
    template = job["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["args"] == ["reshard", "--to=3"]
    mounted = {each["name"]: each for each in template["spec"]["volumes"]}["config"]
    assert mounted["configMap"]["name"] == config["metadata"]["name"]
    variables = environment(manifests, container, 0)
    assert variables["DUEWHEEL_KAFKA__CLIENT__SASL_PLAIN_PASSWORD"] == "secret"
    assert not [name for name in variables if "SHARD" in name]
    assert job["spec"]["activeDeadlineSeconds"] < 300, "for which Helm waits"
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [ConfigError.exit_code, RecoveryRefused.exit_code]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    for kind, where in (("Service", "selector"), ("PodDisruptionBudget", "selector")):
        selector = manifests[f"{kind}/orders-duewheel"]["spec"][where]
        selector = selector.get("matchLabels", selector)
        assert not selector.items() <= template["metadata"]["labels"].items()


def test_another_number_of_shards_leaves_the_pods_as_they_are() -> None:
    """They read it when their containers start again, all at once."""
    page = ("page.enabled=true", "page.openReads=true")
    one, two, three = (rendered(f"shards={number}", *page) for number in (1, 2, 3))
    assert pod(one) == pod(two) == pod(three)
    (shards,) = (
        each for each in containers(one)["serve"]["env"] if "SERVE__SHARDS" in each["name"]
    )
    key = shards["valueFrom"]["configMapKeyRef"]["key"]
    assert key not in one["ConfigMap/orders-duewheel"]["data"]
    assert two["ConfigMap/orders-duewheel"]["data"][key].count("http://") == 2


def test_the_service_selects_the_pods() -> None:
    manifests = rendered(*ALL)
    labels = manifests["StatefulSet/orders-duewheel"]["spec"]["template"]["metadata"]["labels"]
    monitor = manifests["ServiceMonitor/orders-duewheel"]["spec"]
    service = manifests["Service/orders-duewheel"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {each["port"] for each in monitor["endpoints"]} == {
        each["name"] for each in service["spec"]["ports"]
    }


def test_alerts_and_dashboard_are_those_of_the_repository() -> None:
    manifests = rendered(*ALL)
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text("utf-8")
    at_home = alerts.replace("runbook: docs/", "runbook_url: https://docs.example/")
    expected = YAML(typ="safe").load(at_home)["groups"]
    *groups, of_release = manifests["PrometheusRule/orders-duewheel"]["spec"]["groups"]
    assert groups == expected
    (missing,) = of_release["rules"]
    assert missing["expr"].strip().endswith("< 3")
    service = manifests["Service/orders-duewheel"]["metadata"]
    assert missing["labels"]["job"] == service["name"]
    assert missing["annotations"]["runbook_url"].startswith("https://docs.example/alerts.md#")
    assert "jobLabel" not in manifests["ServiceMonitor/orders-duewheel"]["spec"], "it is the name"
    dashboard = manifests["ConfigMap/orders-duewheel-dashboard"]["data"]["duewheel.json"]
    beside = ROOT / "deploy/grafana/duewheel.json"
    assert json.loads(dashboard) == json.loads(beside.read_text("utf-8"))
