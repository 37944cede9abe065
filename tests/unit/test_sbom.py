"""`make sbom`: it names each package that the image installs, with hashes, licence and edges."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from duewheel import __version__

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.txt", "requirements-jdk.txt")


def locked() -> dict[tuple[str, str], set[str]]:
    """The hashes of each name and version."""
    text = "".join((ROOT / lock).read_text() for lock in LOCKS)
    entries = re.findall(r"^([\w.-]+)==([^\s;]+)((?:.*\\\n)*.*)", text, re.MULTILINE)
    return {(n, v): set(re.findall(r"sha256:(\w+)", rest)) for n, v, rest in entries}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The file, and what was said."""
    path = tmp_path_factory.mktemp("sbom") / "duewheel.cdx.json"
    # Without its prerequisite: what runs this has been set up by it.
    where = [f"BIN={Path(sys.executable).parent}", f"SBOM={path}"]
    command = ["make", "--assume-old=setup-dev", "sbom", *where]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    return path.read_text("utf-8"), run.stderr


@pytest.fixture(scope="module")
def sbom(made: tuple[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made[0])
    return found


def needed(sbom: dict[str, Any]) -> dict[str, set[str]]:
    """The names of what each component needs, by its reference."""
    names = {each["bom-ref"]: each["name"] for each in sbom["components"]}
    return {each["ref"]: {names[to] for to in each["dependsOn"]} for each in sbom["dependencies"]}


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


def test_it_is_valid(made: tuple[str, str]) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(made[0]) is None


def test_each_component_has_a_licence_or_is_named_as_unknown(
    made: tuple[str, str], sbom: dict[str, Any]
) -> None:
    unknown = set()
    for component in sbom["components"]:
        texts = [
            each["expression"] if "expression" in each else each["license"]["name"]
            for each in component["licenses"]
        ]
        assert texts and all(texts), component["name"]
        if texts == ["unknown"]:
            unknown.add(f"{component['name']} {component['version']}")
    _, _, said = made[1].strip().partition(": ")
    assert set(said.split(", ")) - {""} == unknown
    installed = {each for each in unknown if version_here(each.split()[0]) == each.split()[1]}
    assert installed == set()
    assert len(unknown) < 10


def version_here(name: str) -> str | None:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def test_each_component_has_its_edges(sbom: dict[str, Any]) -> None:
    """As the installed packages declare them; extras only add some."""
    found = needed(sbom)
    assert found.keys() == {each["bom-ref"] for each in sbom["components"]} | {"root-component"}
    of_packages = {"root-component": "duewheel"} | {
        each["bom-ref"]: each["name"]
        for each in sbom["components"]
        if version_here(each["name"]) == each["version"]
    }
    declared = 0
    for ref, name in of_packages.items():
        requirements = map(Requirement, distribution(name).requires or ())
        holds = [each for each in requirements if each.marker is None or each.marker.evaluate()]
        names = {canonicalize_name(each.name) for each in holds}
        assert names <= found[ref], name
        declared += len(names)
    assert declared > 50
    reached, new = set(), {"root-component"}
    refs = {each["ref"]: set(each["dependsOn"]) for each in sbom["dependencies"]}
    while new:
        reached |= new
        new = {to for ref in new for to in refs[ref]} - reached
    assert reached == refs.keys(), "what nothing needs is not installed"


def test_the_image_installs_what_is_listed() -> None:
    text = (ROOT / "Dockerfile").read_text()
    for lock in LOCKS:
        assert re.search(rf"-r /build/{re.escape(lock)}\b", text), lock
