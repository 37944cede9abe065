"""`duewheel send-lines`: a timer for each line of JSON, acknowledged by itself.

Up to REQUESTS_AT_ONCE records wait for their acknowledgement. A line that cannot be read, or that
Kafka or ingest would refuse, is reported and does not stop the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import BinaryIO

from duewheel.api.file_import import FailedLine, SentLine
from duewheel.api.requests import NewTimer, TimerFields
from duewheel.client import Timer
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.ops.changes.producer_pool import ACKNOWLEDGED_S
from duewheel.ops.changes.requests import TimerCall, prepared
from duewheel.ops.changes.timer_writer import REQUESTS_AT_ONCE, TimerWriter
from duewheel.ops.changes.written import result_of
from duewheel.ops.file_import.line_reader import FileLine, fields_in, lines_of
from duewheel.ops.file_import.line_records import is_copy
from duewheel.osutil.logs import shortened


def send_lines(
    writer: TimerWriter, file: BinaryIO, defaults: TimerFields
) -> Iterator[SentLine | FailedLine]:
    """Writes a timer for each line that is not empty; yields the results in the order of the lines.

    Args:
        writer: writes them.
        file: of lines, a JSON object each, with the fields of NewTimer.
        defaults: fields of all lines that do not have them.

    Raises:
        KafkaUnavailable: no broker answers.
        Unacknowledged: no acknowledgement in time.
        InvalidTimer: a broker takes no record so large; kafka-python then fails all that wait.
        ConfigError: a line's timer topic does not exist in Kafka: each further one would wait for
            it as long.
            After each of these errors, records after the last line that was yielded may or may not
            have been written.
    """
    waiting: deque[tuple[int, Future[Timer] | str]] = deque()
    for line in lines_of(file):
        made = _prepared(writer, line, defaults)
        if made is not None:
            request = made if isinstance(made, str) else _written(writer, *made)
            waiting.append((line.number, request))
        # Of a slow pipe, a result is reported at the next line, and not 1,000 lines later.
        while waiting and (len(waiting) > REQUESTS_AT_ONCE or _is_decided(waiting[0][1])):
            yield _result(writer, *waiting.popleft())
    while waiting:
        yield _result(writer, *waiting.popleft())


def _prepared(
    writer: TimerWriter, line: FileLine, defaults: TimerFields
) -> tuple[str, TimerCall] | str | None:
    """The timer topic and the call that writes the timer; why there is none; or None for an empty
    line.
    """
    try:
        fields = fields_in(line, defaults)
        if fields is None:
            return None
        if is_copy(fields):
            return "a line with a record is sent by `import` only"
        return prepared(writer, NewTimer.of(fields))
    except ConfigError as error:
        return str(error)


def _written(writer: TimerWriter, topic: str, write: TimerCall) -> Future[Timer] | str:
    try:
        with writer.producer(topic) as producer:
            return write(producer)
    except InvalidTimer as error:  # larger than this client writes
        return str(error)


def _is_decided(request: Future[Timer] | str) -> bool:
    return isinstance(request, str) or request.done()


def _result(
    writer: TimerWriter, number: int, request: Future[Timer] | str
) -> SentLine | FailedLine:
    if isinstance(request, str):
        return FailedLine(line=number, error=shortened(request))
    with writer.acknowledging():
        return result_of(SentLine, request.result(ACKNOWLEDGED_S), line=number)
