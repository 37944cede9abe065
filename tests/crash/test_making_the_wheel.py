"""The first start of a data directory with a wheel of gigabytes: real processes, killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.harness.timelines import wheel_only

from duewheel.checkpoints.process_role import Role
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.byte_layouts import ENTRY_BYTES
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timelines.timer_wheel import FILE_NAME

pytestmark = wheel_only

CHILD = Path(__file__).with_name("wheel_child.py")
SLOTS = 1 << 18
MIB = 2 * SLOTS * ENTRY_BYTES >> 20
NEVER = -1
MOUNTED = 'mount -t tmpfs -o size=8m,mode=700 tmpfs "$0" && exec "$@"'


def started(
    folder: Path, role: str = "DEQUEUE", die_at_mib: int = NEVER, within: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    arguments = [str(folder), str(SLOTS), role, str(die_at_mib)]
    line = [*within, sys.executable, "-P", str(CHILD), *arguments]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


def printed(process: subprocess.Popen[str]) -> list[str]:
    return process.communicate(timeout=60)[0].splitlines()


def require_empty_wheel(folder: Path) -> None:
    """All of it, and nothing else that large."""
    directory = DataDirectory(folder, WheelConfig(50, SLOTS, 60_000, 0))
    assert directory.timeline.newest_batch(0) == 0
    assert directory.timeline.is_empty(0, 2 * SLOTS)
    directory.close()
    large = [path.name for path in folder.iterdir() if path.stat().st_size > MIB << 19]
    assert large == [FILE_NAME]


def test_a_wheel_is_made_without_engine_lock(tmp_path: Path) -> None:
    assert printed(started(tmp_path)) == ["makes", "started"]
    require_empty_wheel(tmp_path)
    assert printed(started(tmp_path)) == ["started"]


@pytest.mark.parametrize(
    "at_mib",
    [MIB // 2, *(pytest.param(each, marks=pytest.mark.crash_matrix) for each in (0, MIB))],
)
def test_what_a_killed_maker_leaves_is_overwritten(tmp_path: Path, at_mib: int) -> None:
    for _ in range(2):
        killed = started(tmp_path, die_at_mib=at_mib)
        assert printed(killed) == ["makes"]
        assert killed.returncode == -signal.SIGKILL
    assert printed(started(tmp_path)) == ["makes", "started"]
    require_empty_wheel(tmp_path)


def test_of_two_processes_one_makes_it_and_both_start(tmp_path: Path) -> None:
    both = [started(tmp_path, role.name) for role in Role]
    lines = [line for process in both for line in printed(process)]
    # "held": the other one looked for a wheel at this moment, for which it takes engine.lock.
    assert sorted(set(lines) - {"held"}) == ["makes", "started"]
    assert (lines.count("makes"), lines.count("started")) == (1, 2)
    require_empty_wheel(tmp_path)


def test_too_little_room_for_a_wheel_is_said_in_numbers(
    tmp_path: Path, require: Callable[[object, str], None]
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    within = ("unshare", "--mount", "sh", "-c", MOUNTED, str(small))
    can = shutil.which("unshare") and subprocess.run([*within, "true"], check=False).returncode == 0
    require(can, "mounting a file system of a few megabytes is not allowed here")
    process = started(small, within=within)
    (line,) = printed(process)
    assert process.returncode == 1
    assert "the wheel takes 16 MiB" in line
    assert "are free there: make room, lower timer.slots" in line
