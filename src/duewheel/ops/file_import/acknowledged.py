"""Schedules a message for each line of JSON: `duewheel send --file`.

Up to REQUESTS_AT_ONCE records wait for their acknowledgement. A line that cannot be read, or of
which ingest would make a dead letter, is reported and does not stop the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import BinaryIO

from duewheel.api.file_import import FailedLine, SentLine
from duewheel.api.requests import NewTimer, TimerFields
from duewheel.client import Timer
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.changes.producers import (
    ACKNOWLEDGED_S,
    REQUESTS_AT_ONCE,
    KeptProducers,
    acknowledging,
    producer_of,
)
from duewheel.ops.changes.requests import prepared, result_of
from duewheel.ops.file_import.lines import fields_in, lines_of
from duewheel.ops.file_import.records import Fields, is_copy


def send_lines(
    settings: Settings, file: BinaryIO, defaults: TimerFields
) -> Iterator[SentLine | FailedLine]:
    """Writes a timer for each line that is not empty; yields the results in the order of the lines.

    Args:
        file: of lines, a JSON object each, with the fields of NewTimer.
        defaults: fields of all lines that do not have them.

    Raises:
        KafkaUnavailable: no broker answers.
        Unacknowledged: no acknowledgement in time. After either error, records after the last line
            that was yielded may or may not have been written.
    """
    waiting: deque[tuple[int, Future[Timer] | str]] = deque()
    with closing(KeptProducers(settings)) as producers:
        for number, line in enumerate(lines_of(file), 1):
            try:
                fields = fields_in(line, defaults)
                if fields is None:
                    continue
                topic, write = prepared(settings, _timer(fields))
            except ConfigError as error:
                waiting.append((number, str(error)))
            else:
                with producer_of(settings, topic, None, producers) as producer:
                    waiting.append((number, write(producer)))
            while len(waiting) > REQUESTS_AT_ONCE:
                yield _result(settings, *waiting.popleft())
        while waiting:
            yield _result(settings, *waiting.popleft())


def _timer(fields: Fields) -> NewTimer:
    if is_copy(fields):
        raise ConfigError("a line with a record needs --name: it is sent exactly once, or refused")
    return NewTimer.of(fields)


def _result(settings: Settings, number: int, request: Future[Timer] | str) -> SentLine | FailedLine:
    if isinstance(request, str):
        return FailedLine(line=number, error=request)
    with acknowledging(settings):
        return result_of(SentLine, request.result(ACKNOWLEDGED_S), line=number)
