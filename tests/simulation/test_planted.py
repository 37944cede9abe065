"""The planted faults fit the present code: each text to replace occurs once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulation.planted import PLANTED
from tests.simulation.planting import ROOT, copied, found
from tests.simulation.policies.table import MODULES

SEEDS = 300


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_has_its_place(name: str) -> None:
    planted = PLANTED[name]
    assert (ROOT / "src" / "duewheel" / planted.path).read_text().count(planted.old) == 1
    assert planted.old != planted.new
    if planted.test:
        path, test = planted.test.split("::")
        assert f"def {test}(" in (ROOT / "tests" / path).read_text()


@pytest.mark.parametrize("policy", MODULES)
def test_each_policy_has_faults(policy: str) -> None:
    path = f"wheel/policies/{MODULES[policy].__name__.rpartition('.')[2]}.py"
    assert any(fault.path == path for fault in PLANTED.values())


def test_a_fault_names_only_what_is_defined(tmp_path: Path) -> None:
    """Otherwise it is found by its NameError, and shows nothing of the clause that it breaks."""
    for name, planted in PLANTED.items():
        text = (ROOT / "src" / "duewheel" / planted.path).read_text()
        (tmp_path / f"{name}.py").write_text(text.replace(planted.old, planted.new))
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "-q", "--isolated", "--select", "F821", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_a_fault_is_planted_in_a_copy(tmp_path: Path) -> None:
    planted = PLANTED["slot-early"]
    copy = copied(planted, tmp_path) / "duewheel" / planted.path
    assert planted.new in copy.read_text()
    assert planted.new not in (ROOT / "src" / "duewheel" / planted.path).read_text()


@pytest.mark.crash_matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_found(name: str) -> None:
    told = found(PLANTED[name], SEEDS)
    assert not told.startswith(("NOT", "broken")), told
