"""The error behind a failure of Spark: Spark passes on its text at most.

An error of a task comes out of the sink's first step, one of the planning process out of the query;
both have the Python traceback in their text, and its last line names the error.
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from duewheel.errors import (
    BatchTooLarge,
    ConfigError,
    DiskFull,
    DuewheelError,
    KafkaUnavailable,
    RecoveryRefused,
)

_OF_A_TASK = re.compile(r"^duewheel\.errors\.(\w+): (.*)$", re.MULTILINE)
_RAISED_BY_TASKS = {e.__name__: e for e in (ConfigError, KafkaUnavailable, RecoveryRefused)}
_DISK_FULL = "No space left on device"
# In the JVM; in a task, by Python and by pyarrow; a task that the kernel has killed.
_NO_MEMORY = re.compile(
    r"java\.lang\.OutOfMemoryError|^MemoryError|ArrowMemoryError|Python worker exited unexpectedly",
    re.MULTILINE,
)


def cause(text: str, sink_error: BaseException | None) -> BaseException:
    """The original error.

    Args:
        text: of the error that ended the query, or of `sink_error`.
        sink_error: the sink's, if it failed.
    """
    if isinstance(sink_error, MemoryError):
        return BatchTooLarge(f"a batch did not fit the memory: {sink_error}")
    if sink_error is not None:
        if not isinstance(sink_error, PySparkException | Py4JError):
            return sink_error
        text = f"{sink_error}\n{text}"
    if raised := _OF_A_TASK.findall(text):
        name, message = raised[-1]  # behind those that it was raised from
        return _RAISED_BY_TASKS.get(name, DuewheelError)(message)
    if _NO_MEMORY.search(text):
        return BatchTooLarge("a batch did not fit the memory of Spark's driver or of a task")
    first_line = text.strip().splitlines()[0] if text.strip() else "no message"
    if _DISK_FULL in text:
        return DiskFull(f"Spark cannot write its checkpoint or scratch files: {first_line}")
    return DuewheelError(f"Spark's query failed: {first_line}")
