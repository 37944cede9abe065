"""A process that yields has a lower priority, and so has what it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

GROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")
PROBE = """
import os, pathlib, subprocess, sys, threading
from duewheel.osutil.priority_and_heap import yield_processors
begun, found, end = threading.Event(), [], threading.Event()
def run():
    begun.set()
    end.wait()
    found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
thread = threading.Thread(target=run)
thread.start()
begun.wait()
program = [sys.executable, "-Ic", "import os; input(); print(os.nice(0))"]
before = subprocess.Popen(program, stdin=subprocess.PIPE)
yield_processors(5)
end.set()
thread.join()
print(os.nice(0), *found, flush=True)
before.communicate(b"now")
subprocess.run(program, check=True, input=b"now")
print(pathlib.Path("/proc/self/autogroup").read_text().split()[-1])
"""


def test_a_process_that_yields_has_a_lower_priority_in_all_its_parts() -> None:
    """Threads and programs that ran before and that come after; and, of its group of the kernel's,
    only its own step: `nice` counts within the group.
    """
    run = subprocess.run(
        ["nice", "-n", "10", sys.executable, "-P", "-c", PROBE],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    *found, group = [int(word) for word in run.stdout.split()]
    assert found == [min(os.nice(0) + 10 + 5, 19)] * 4
    assert group == (5 if GROUPS.exists() and GROUPS.read_text() == "1\n" else 0)


def test_columns_can_be_made_without_pandas() -> None:
    code = """if True:
        import sys
        from duewheel.osutil.priority_and_heap import do_without_pandas
        do_without_pandas()
        import pyarrow as pa, pyspark.testing.utils
        assert pa.array([1, None]).null_count == 1
        sys.exit("pandas" in sys.modules)
    """
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
