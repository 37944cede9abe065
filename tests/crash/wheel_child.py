"""Starts a data directory and reports the progress of its wheel; may die meanwhile.

    python -P wheel_child.py FOLDER SLOTS ROLE [DIE_AT_MIB]

Prints "held" if engine.lock was held while the wheel was written, "made" after each start that
wrote one, "started" in the end.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from duewheel.checkpoints.file_lock import ENGINE_LOCK, lock_is_held
from duewheel.checkpoints.process_role import Role
from duewheel.errors import DiskFull
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory


def main(folder: Path, slots: int, role: Role, die_at_mib: int) -> None:
    def progress(done: int, size: int) -> None:
        if not done:
            print("makes", flush=True)
        if done >> 20 == die_at_mib:
            os.kill(os.getpid(), signal.SIGKILL)
        if lock_is_held(folder / ENGINE_LOCK):
            print("held", flush=True)

    try:
        directory = DataDirectory.start(folder, WheelConfig(50, slots, 60_000, 0), role, progress)
    except DiskFull as error:
        print(error, flush=True)
        sys.exit(error.exit_code)
    print("started", flush=True)
    directory.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Role[sys.argv[3]], int(sys.argv[4]))
