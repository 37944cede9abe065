"""`make sbom`: it names each package that the image installs, with its hashes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from duewheel import __version__

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.txt", "requirements-jdk.txt")


def locked() -> dict[tuple[str, str], set[str]]:
    """The hashes of each name and version."""
    text = "".join((ROOT / lock).read_text() for lock in LOCKS)
    entries = re.findall(r"^([\w.-]+)==([^\s;]+)((?:.*\\\n)*.*)", text, re.MULTILINE)
    return {(n, v): set(re.findall(r"sha256:(\w+)", rest)) for n, v, rest in entries}


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("sbom") / "duewheel.cdx.json"
    # Without its prerequisite: what runs this has been set up by it.
    where = [f"BIN={Path(sys.executable).parent}", f"SBOM={path}"]
    subprocess.run(["make", "--assume-old=setup-dev", "sbom", *where], cwd=ROOT, check=True)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_each_locked_package_is_named_with_its_hashes(sbom: dict[str, Any]) -> None:
    found = {
        (component["name"], component["version"]): {
            each["content"]
            for reference in component["externalReferences"]
            for each in reference.get("hashes", ())
        }
        for component in sbom["components"]
    }
    assert found == locked()
    assert len(found) > 50
    purls = {component["purl"] for component in sbom["components"]}
    assert purls == {f"pkg:pypi/{name}@{version}" for name, version in found}


def test_it_is_of_this_release(sbom: dict[str, Any]) -> None:
    assert sbom["bomFormat"] == "CycloneDX"
    root = sbom["metadata"]["component"]
    assert (root["name"], root["version"]) == ("duewheel", __version__)
    assert "timestamp" not in sbom["metadata"], "equal locks have equal files"


def test_the_image_installs_what_is_listed() -> None:
    text = (ROOT / "Dockerfile").read_text()
    for lock in LOCKS:
        assert re.search(rf"-r /build/{re.escape(lock)}\b", text), lock
