"""The process from which Spark forks the Python workers of a local master.

Spark ends a worker that has been idle for a minute. Another one would take half a second to import
what a task needs, while a timer waits; forked from a process that has it, it takes milliseconds.
Spark runs this module in the place of `pyspark.daemon`.
"""

from __future__ import annotations

import gc
import importlib

from pyspark import daemon

from duewheel.osutil.host_share import do_without_pandas, share_one_heap

if __name__ == "__main__":
    do_without_pandas()
    share_one_heap()
    for module in ("pyspark.worker", "duewheel.streaming.read_task"):
        importlib.import_module(module)
    # Otherwise the garbage collection of each worker would copy the pages that it shares.
    gc.freeze()
    daemon.manager()
