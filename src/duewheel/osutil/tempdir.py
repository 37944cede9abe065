"""Temporary folders that never outlive this process, even if it is killed.

A process that ends in order removes its folder itself. After a `kill -9` the *remover* does so: a
child process that only waits for its parent's end.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path

from duewheel.osutil.child_process import Child

# Other writers end later than the remover's signal: `duewheel run` gives its processes 8 s, and
# Spark's JVM takes a moment more. Until then both may create folders again.
_LINGER_S = 20.0
_END_S = 5.0

_REMOVER = """\
import shutil, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
signal.sigwait([signal.SIGTERM])
end_s = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end_s:
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    time.sleep(0.1)
"""


class ScratchFolder:
    """A temporary folder, empty at first; the caller calls `remove`."""

    def __init__(self, prefix: str, linger_s: float = _LINGER_S) -> None:
        """After a `kill -9` it is removed again and again for `linger_s`."""
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        command = [sys.executable, "-I", "-S", "-c", _REMOVER, str(self.path), str(linger_s)]
        self._remover = Child(command, on_parent_death=signal.SIGTERM)

    def remove(self) -> None:
        """Removes the folder with its content. A second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._remover.end(signal.SIGKILL, _END_S)
