"""A process that yields has a lower priority, and so has what it starts."""

from __future__ import annotations

import os
import subprocess
import sys

PROBE = """
import os, subprocess, sys, threading
from duewheel.osutil.host_share import yield_processors
yield_processors()
found = []
thread = threading.Thread(target=lambda: found.append(os.nice(0)))
thread.start()
thread.join()
print(os.nice(0), *found, flush=True)
subprocess.run([sys.executable, "-I", "-c", "import os; print(os.nice(0))"], check=True)
"""


def test_a_process_that_yields_has_a_lower_priority_in_all_its_parts() -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-c", PROBE], capture_output=True, text=True, check=True
    )
    found = [int(word) for word in run.stdout.split()]
    assert found == [min(os.nice(0) + 5, 19)] * 3


def test_columns_can_be_made_without_pandas() -> None:
    code = """if True:
        import sys
        from duewheel.osutil.host_share import do_without_pandas
        do_without_pandas()
        import pyarrow as pa, pyspark.testing.utils
        assert pa.array([1, None]).null_count == 1
        sys.exit("pandas" in sys.modules)
    """
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
