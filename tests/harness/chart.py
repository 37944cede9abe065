"""deploy/chart, rendered by Helm; `make chart` builds Helm where there is Go."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = "1.31"
CHART = ROOT / "deploy" / "chart"
BUILT = ROOT / "build" / "bin" / "helm"
HELM = str(BUILT) if BUILT.exists() else shutil.which("helm")
MISSING = "no Helm: `make chart` builds it where there is Go"
Manifests = dict[str, dict[str, Any]]


def helm(*arguments: str) -> str:
    run = subprocess.run([str(HELM), *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def rendered(*values: str, config: Path | None = None) -> Manifests:
    """The manifests by kind and name; `config` is the file that the pods get."""
    sets = [word for value in values for word in ("--set", value)]
    sets += [] if config is None else ["--set-file", f"config={config}"]
    text = helm("template", "orders", str(CHART), "--kube-version", f"{KUBERNETES}.0", *sets)
    found = [each for each in YAML(typ="safe").load_all(text) if each]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def environment(manifests: Manifests, container: dict[str, Any], index: int) -> dict[str, str]:
    """The variables of a container in the pod with this index; of a Secret each is `secret`."""

    def value(variable: dict[str, Any]) -> str:
        source = variable.get("valueFrom", {})
        if "configMapKeyRef" in source:
            named = source["configMapKeyRef"]
            data = manifests[f"ConfigMap/{named['name']}"]["data"]
            return str(data[named["key"]])
        if "fieldRef" in source:
            return str(index)
        return str(variable.get("value", "secret"))

    return {variable["name"]: value(variable) for variable in container["env"]}
