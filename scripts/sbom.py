"""Completes the list of libraries that `cyclonedx-py requirements` makes of the lock files.

    python -P scripts/sbom.py requirements.txt requirements-jdk.txt < LIST > COMPLETE

It adds what that program leaves empty: the licences, from the installed packages, and which library
needs which, from the lock files' comments, where uv says it for all platforms and with the extras.
A release that is not installed here, such as one for another Python, has the licence `unknown`:
these are listed on the standard error.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

ROOT_REF = "root-component"  # of cyclonedx-py
UNKNOWN = "unknown"
_ENTRY = re.compile(r"^([\w.-]+)==.*\n((?: .*\n?)*)", re.MULTILINE)
_NEEDED_BY = re.compile(r"^    # (?:  |via )([\w.-]+)(?: \(pyproject\.toml\))?$", re.MULTILINE)


def main(locks: list[str]) -> int:
    """Reads the list on the standard input; writes it to the standard output."""
    bom = json.load(sys.stdin)
    components: list[dict[str, Any]] = bom["components"]
    for each in components:
        each["licenses"] = licences(each["name"], each["version"])
    bom["dependencies"] = edges(bom, "".join(Path(lock).read_text("utf-8") for lock in locks))
    unknown = [f"{each['name']} {each['version']}" for each in components if is_unknown(each)]
    if unknown:
        print(f"licence unknown, not installed here: {', '.join(unknown)}", file=sys.stderr)
    json.dump(bom, sys.stdout, indent=2)
    return 0


def licences(name: str, version: str) -> list[dict[str, Any]]:
    """The licence that the installed release declares: one SPDX expression, or names."""
    try:
        found = metadata(name)
    except PackageNotFoundError:
        return _named([UNKNOWN])
    if found["Version"] != version:
        return _named([UNKNOWN])
    heads = [each.rpartition(" :: ") for each in found.get_all("Classifier", [])]
    classified = [last for first, _, last in heads if first.startswith("License")]
    texts = [*found.get_all("License-Expression", []), *found.get_all("License", [])]
    text = texts[0] if texts else ""
    try:
        return [{"expression": canonicalize_license_expression(text)}]
    except InvalidLicenseExpression:
        # The field may have a whole licence, with line breaks; classifiers have its name.
        return _named(classified or [text if text and "\n" not in text else UNKNOWN])


def is_unknown(component: dict[str, Any]) -> bool:
    """Whether nothing declares its licence."""
    found: list[dict[str, Any]] = component["licenses"]
    return found == _named([UNKNOWN])


def edges(bom: dict[str, Any], locks: str) -> list[dict[str, Any]]:
    """What each component needs. What no other one needs is this package's own."""
    refs: dict[str, list[str]] = {bom["metadata"]["component"]["name"]: [ROOT_REF]}
    for each in bom["components"]:  # a name has several releases, for several Pythons
        refs.setdefault(each["name"], []).append(each["bom-ref"])
    needs: dict[str, set[str]] = {ref: set() for found in refs.values() for ref in found}
    for name, comments in _ENTRY.findall(locks):
        for user in _NEEDED_BY.findall(comments) or [bom["metadata"]["component"]["name"]]:
            for ref in refs[user]:
                needs[ref].update(refs[name])
    return [{"ref": ref, "dependsOn": sorted(found)} for ref, found in sorted(needs.items())]


def _named(names: list[str]) -> list[dict[str, Any]]:
    return [{"license": {"name": name}} for name in names]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
