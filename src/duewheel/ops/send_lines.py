"""Schedules a message for each line of JSON: `duewheel send --file`.

Up to REQUESTS_AT_ONCE records wait for their acknowledgement. A line that cannot be read, or of
which ingest would make a dead letter, is reported and does not stop the others.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from typing import Any

from pydantic import ValidationError

from duewheel.client import Timer
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.changes import (
    ACKNOWLEDGED_S,
    REQUESTS_AT_ONCE,
    KeptProducers,
    acknowledging,
    prepared,
    producer_of,
    scheduled,
)
from duewheel.ops.new_timer import NewTimer

LINE_CHARACTERS_MAX = 16 << 20


def send_lines(
    settings: Settings, lines: Iterable[str], defaults: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Writes a timer for each line, and waits for Kafka's acknowledgements.

    Args:
        settings: of the shard.
        lines: a JSON object each, with the fields of NewTimer; empty ones are skipped.
        defaults: fields of all lines that do not have them.

    Yields:
        For each line its number, and the result of `changes.send` or `error`; in their order.

    Raises:
        KafkaUnavailable: no acknowledgement in time; records behind the last line that was yielded
            may or may not have been written.
    """
    waiting: deque[tuple[int, Future[Timer] | str]] = deque()
    with closing(KeptProducers(settings)) as producers:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                topic, write = prepared(settings, **_parsed(line, defaults).arguments)
            except ConfigError as error:
                waiting.append((number, str(error)))
            else:
                with producer_of(settings, topic, None, producers) as producer:
                    waiting.append((number, write(producer)))
            while len(waiting) > REQUESTS_AT_ONCE:
                yield _result(settings, *waiting.popleft())
        while waiting:
            yield _result(settings, *waiting.popleft())


def _parsed(line: str, defaults: Mapping[str, Any]) -> NewTimer:
    if len(line) > LINE_CHARACTERS_MAX:
        raise ConfigError(f"the line has more than {LINE_CHARACTERS_MAX} characters")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"this is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError("this is no JSON object")
    try:
        return NewTimer.model_validate(_without_alternatives(defaults, fields) | fields)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        text = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in problems)
        raise ConfigError(text) from None


# Fields of which a line has at most one.
_ALTERNATIVES = (
    {"deliver_at", "delay", "level"},
    {"value", "value_base64"},
    {"key", "key_base64"},
)


def _without_alternatives(defaults: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Drops the defaults that a line replaces under another name."""
    dropped = [names for names in _ALTERNATIVES if names & fields.keys()]
    return {name: each for name, each in defaults.items() if not any(name in n for n in dropped)}


def _result(settings: Settings, number: int, request: Future[Timer] | str) -> dict[str, Any]:
    if isinstance(request, str):
        return {"line": number, "error": request}
    with acknowledging(settings):
        return {"line": number, **scheduled(request.result(ACKNOWLEDGED_S))}
