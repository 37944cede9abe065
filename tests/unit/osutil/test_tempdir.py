"""Temporary folders are gone with their process, however it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
from tests.harness.launcher import wait_until

from duewheel.osutil.tempdir import ScratchFolder

DEADLINE_S = 60.0

# Says where its folder is; what it has started writes there for two more seconds, whoever dies.
OWNER = """
import json, subprocess, sys, time
import psutil
from duewheel.osutil import tempdir
folder = tempdir.ScratchFolder("duewheel-test-", linger_s=5.0).path
removers = [child.pid for child in psutil.Process().children()]
writer = '''
import pathlib, sys, time
for number in range(40):
    path = pathlib.Path(sys.argv[1]) / "data" / str(number)
    path.mkdir(parents=True, exist_ok=True)
    (path / "file").touch()
    time.sleep(0.05)
'''
other = subprocess.Popen([sys.executable, "-c", writer, str(folder)], stdout=subprocess.DEVNULL)
while not (folder / "data" / "5").exists():
    time.sleep(0.01)
print(json.dumps([str(folder), removers, other.pid]), flush=True)
time.sleep(600)
"""


def test_a_folder_is_gone_after_kill_9(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-P", "-c", OWNER],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        folder, (remover,), writer = json.loads(owner.stdout.readline())
        others = [psutil.Process(remover), psutil.Process(writer)]
        assert Path(folder).parent == tmp_path
        assert Path(folder).exists()
        owner.kill()
    # They are init's by now: nobody here waits for them.
    wait_until(lambda: not any(other.is_running() for other in others), f"{others} run", DEADLINE_S)
    assert list(tmp_path.iterdir()) == []


def test_a_removed_folder_leaves_nobody() -> None:
    before = set(psutil.Process().children())
    scratch = ScratchFolder("duewheel-test-")
    (remover,) = set(psutil.Process().children()) - before
    (scratch.path / "data").mkdir()
    scratch.remove()
    assert not scratch.path.exists()
    assert not remover.is_running()
    scratch.remove()
