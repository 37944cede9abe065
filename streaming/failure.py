"""Finds duewheel's error in a failure of Spark, which passes on the text of an error at most.

The exit code of ingest and the size of its next batch depend on the class of the error. Where it is
raised decides where it comes out:

    the sink, in this process            unchanged, as the sink's error
    a task, another process              in the text of Spark's error, raised by the sink's step 1
    the planning process (source.py)     in the text of Spark's error that ended the query

Such a text has a Python traceback, whose last line names class and message.
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
    PlannerUnavailable,
    RecoveryRefused,
)

_ERROR_LINE = re.compile(r"^duewheel\.errors\.(\w+): (.*)$", re.MULTILINE)
# Those of tasks and of the planning process that have an exit code of their own.
_CLASSES = {e.__name__: e for e in (ConfigError, KafkaUnavailable, RecoveryRefused)}
# Spark's texts of a planning process that is away give no reason, the second none at all. Its code
# has the 10 s.
_NO_PLANNER = {
    r"Python worker failed to connect back": "the process that plans batches did not start "
    "within 10 s: too few free processors",
    r"terminated with exception:\s*SQLSTATE": "the process that plans batches has ended",
}
_DISK_FULL = "No space left on device"
# Of the JVM; of a task, by Python and by pyarrow; of a task that the kernel has killed.
_NO_MEMORY = re.compile(
    r"java\.lang\.OutOfMemoryError|^MemoryError|ArrowMemoryError|Python worker exited unexpectedly",
    re.MULTILINE,
)


def cause(sink_error: BaseException | None, text: str = "") -> BaseException:
    """The original error, or the closest one that the text allows. `text` is that of the error that
    ended the query, if Spark raised one.
    """
    if isinstance(sink_error, MemoryError):
        return BatchTooLarge(f"a batch did not fit the memory: {sink_error}")
    if sink_error is not None:
        if not isinstance(sink_error, PySparkException | Py4JError):
            return sink_error
        text = f"{sink_error}\n{text}"
    if raised := _ERROR_LINE.findall(text):
        name, message = raised[-1]  # a traceback has the causes of an error before it
        return _CLASSES.get(name, DuewheelError)(message)
    if _NO_MEMORY.search(text):
        return BatchTooLarge("a batch did not fit the memory of Spark's driver or of a task")
    first_line = text.strip().splitlines()[0] if text.strip() else "no message"
    if _DISK_FULL in text:
        return DiskFull(f"Spark cannot write its checkpoint or scratch files: {first_line}")
    no_planner = (
        PlannerUnavailable(why) for end, why in _NO_PLANNER.items() if re.search(end, text)
    )
    return next(no_planner, DuewheelError(f"Spark's query failed: {first_line}"))
