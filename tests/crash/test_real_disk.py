"""A real file system that is full or read-only: logged, no timer lost, and over by itself.

The same through the one file seam, with EIO and half-made stores at any moment: the simulation.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("disk_child.py")
COPYING_CHILD = Path(__file__).with_name("copying_child.py")
GUARD_CHILD = Path(__file__).with_name("guard_child.py")
# A mount namespace of its own: what is mounted there is gone with the process.
FILL = 'cat /dev/zero > "$2/ballast" 2> /dev/null; '
MOUNTED = 'mount -t tmpfs -o size=13m tmpfs "$0" && exec "$@"'


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where another user can get to: not below pytest's own, which is private."""
    with tempfile.TemporaryDirectory(prefix="duewheel-disk-") as name:
        yield Path(name)


def run(child: Path, arguments: list[str], *within: str) -> dict[str, Any]:
    line = [*within, sys.executable, "-P", str(child), *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def judge(found: dict[str, Any], error: str) -> None:
    assert found["errors"] == dict.fromkeys(("place", "checkpoint", "start", "place again"), error)
    assert found["stopped"] == ["", ""]
    assert found["meanwhile"] == 100
    assert found["delivered"] == list(range(200))
    assert (found["early"], found["findings"]) == (0, [])


@pytest.fixture
def small(folder: Path, require: Callable[[object, str], None]) -> list[str]:
    """What runs a command in which `folder`/small is a file system of a few megabytes."""
    small = folder / "small"
    small.mkdir()
    within = ["unshare", "--mount", "sh", "-c", MOUNTED, str(small)]
    can = shutil.which("unshare") and subprocess.run([*within, "true"], check=False).returncode == 0
    require(can, "mounting a file system of a few megabytes is not allowed here")
    return within


def test_a_full_disk(folder: Path, small: list[str]) -> None:
    judge(run(CHILD, ["full", str(folder)], *small), "ENOSPC")


@pytest.mark.parametrize("rows_per_batch", [100, 800])
def test_a_disk_that_would_be_full_is_not_filled(
    folder: Path, small: list[str], rows_per_batch: int
) -> None:
    """What is taken waits for deliveries to make room, and is never more than the disk can hold.
    A batch of 800 rows is larger than the disk: it comes in parts.
    """
    found = run(GUARD_CHILD, [str(folder), str(rows_per_batch)], *small)
    assert found["waits"] >= 2
    assert found["least_free"] >= 1_500_000
    assert found["delivered"] == list(range(800))
    assert found["findings"] == []


@pytest.mark.parametrize(("filled", "said"), [("", "the wheel takes 128 MiB"), (FILL, "No space")])
def test_a_process_without_room_to_start_says_how_much_is_free(
    folder: Path, small: list[str], filled: str, said: str
) -> None:
    config, place = folder / "duewheel.toml", folder / "small"
    config.write_text(f'[timer]\ntopics = ["a"]\n[storage]\ndata_dir = "{place}/data"\n')
    script = filled + 'exec "$0" -P -m duewheel dequeue --config "$1"'
    done = subprocess.run(
        [*small, "sh", "-c", script, sys.executable, str(config), str(place)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert "MiB are free" in done.stderr or "are free there: make room" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_that_copies_on_write(
    folder: Path, require: Callable[[object, str], None]
) -> None:
    """A store to a mapped file finds no room there, and ends the process: like any kill."""
    image, place = folder / "image", folder / "small"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(120 << 20)
    made = shutil.which("mkfs.btrfs") and subprocess.run(
        ["mkfs.btrfs", "--quiet", "--mixed", str(image)], capture_output=True, check=False
    )
    script = 'mount -o loop "$0" "$1" && shift && exec "$@"'
    within = ["unshare", "--mount", "sh", "-c", script, str(image), str(place)]
    can = made and subprocess.run([*within, "true"], check=False, capture_output=True)
    require(can and can.returncode == 0, "no mkfs.btrfs, or no right to mount")
    line = [*within, sys.executable, "-P", str(COPYING_CHILD)]
    kind = "from duewheel.checkpoints import disk_room; from pathlib import Path; import sys; "
    kind += "print(disk_room.copies_on_write(Path(sys.argv[1])))"
    asked = [*within, sys.executable, "-P", "-c", kind, str(place)]
    assert subprocess.check_output(asked, text=True) == "btrfs\n"
    died = subprocess.run([*line, "die", str(folder)], timeout=120, check=False)
    assert died.returncode == -signal.SIGBUS
    found = json.loads(subprocess.check_output([*line, "go-on", str(folder)], timeout=120))
    assert found == {"delivered": list(range(200)), "findings": []}


def test_what_is_mounted_over_another_file_system_is_told(folder: Path, small: list[str]) -> None:
    script = (
        'cd "$0" && mkdir lower upper work whole && mount -t overlay overlay '
        '-o lowerdir=lower,upperdir=upper,workdir=work whole && exec "$@"'
    )
    kind = "from duewheel.checkpoints import disk_room; from pathlib import Path; "
    kind += "print(*(disk_room.copies_on_write(Path(name)) for name in ('.', 'whole')))"
    line = [*small, "sh", "-c", script, str(folder / "small"), sys.executable, "-P", "-c", kind]
    assert subprocess.check_output(line, text=True) == "None overlay\n"


def test_a_folder_that_may_not_be_written_to(folder: Path) -> None:
    judge(run(CHILD, ["forbidden", str(folder)]), "EACCES")
    assert (folder / "small").stat().st_uid != 0, "root may write everywhere"
