"""Records of changes: who has requested which one, when, and the outcome; in the log, and in the
topic of changes if `serve.changes_topic` names one.

That topic gets a record before a change is made, and one with the outcome after it, both under a
key of their own. Without Kafka's acknowledgement of the first the change is refused: so none is
made that the topic does not have. It may have one that was not made, or whose outcome is missing,
because the server was killed in between, or Kafka went away. A transaction would not help: most
changes cannot be a part of one.

Neither has a message: no value, no headers, no key of a new timer. The log has no ids and keys.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import structlog
from fastapi import Depends, Request, Response

from duewheel.api.change_records import BegunChange, EndedChange
from duewheel.api.model import DryRunFields, RequestFields, Result
from duewheel.api.requests import MessageFields
from duewheel.client.handle import RecallHandle
from duewheel.errors import ConfigError, DuewheelError
from duewheel.ops.changes.timer_writer import ACKNOWLEDGED_S, TimerWriter
from duewheel.ops.changes.written import WrittenChange
from duewheel.ops.topics.closed_targets import is_open
from duewheel.serve.access import Caller, Calling
from duewheel.serve.problems import RETRY_AFTER_S, Refused, refused_by
from duewheel.serve.service import Lane, Service, Shared
from duewheel.serve.waits import all_of

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T", bound=Result)

_MESSAGE = frozenset(MessageFields.model_fields) - {"timer_topic"}
_SAMPLE = {"sample"}  # of a cancel by filter: keys of some of the timers


@dataclass(frozen=True)
class Change:
    """A request that changes something; `caller` is in its records."""

    service: Service
    request: Request
    response: Response
    caller: Caller

    async def replied(self, written: WrittenChange[T], wait_s: float) -> T:
        """Waits for the replies, and returns the result."""
        if written.replies:
            waits, count = self.service.waits, len(written.replies)
            await waits.until(self.request, all_of(written.replies), wait_s, count)
        return written.result()

    def set_status(self, *, in_effect: bool) -> None:
        """Makes the status 202 if the change is written and its effect still to come."""
        if not in_effect:
            self.response.status_code = HTTPStatus.ACCEPTED

    async def begin(self, named: Mapping[str, object]) -> BegunChange:
        """Writes the record of a change that begins now, and returns it.

        Args:
            named: the arguments of the operation, which are checked.

        Raises:
            Refused: the record may not be written.
        """
        client = self.request.client
        begun = BegunChange(
            change=uuid.uuid4().hex,
            begun_ms=self.service.clock.now_ms(),
            shard=self.service.settings.shard.index,
            operation=self.request.scope["route"].operation_id,
            client=client.host if client else "unknown",
            by=self.caller.name or None,
            user=self.caller.user,
            arguments=await self._arguments(named),
        )
        try:
            await self._require_closed()
            await self._write(begun, self.service.record)
        except DuewheelError as error:
            log.warning("a change is refused without a record", **begun.who, reason=str(error))
            retry = {"Retry-After": RETRY_AFTER_S}
            detail = f"nothing was changed, as the topic of changes has no record of it: {error}"
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "not_recorded", detail, retry) from error
        return begun

    async def end(
        self,
        begun: BegunChange,
        status: int,
        code: str | None = None,
        result: dict[str, Any] | None = None,
        **counts: int,
    ) -> None:
        """Writes the record of its outcome, which the answer to the request has in any case."""
        ended = EndedChange(
            **dict(begun) | {"state": "ended"},
            ended_ms=self.service.clock.now_ms(),
            status=status,
            code=code,
            result=result,
            **counts,
        )
        try:
            await self._write(ended, self.service.record_end)
        except (DuewheelError, Refused) as error:
            log.warning("a change has no outcome in its topic", **begun.who, reason=str(error))

    async def _arguments(self, named: Mapping[str, object]) -> dict[str, Any]:
        """Those of URL and body as they were given, without a message, and without parts that the
        operation does not read; and the timer that a handle names.
        """
        given: dict[str, Any] = dict(self.request.path_params)
        topic = named.get("timer_topic")
        for fields in named.values():
            if isinstance(fields, RequestFields):
                body = await self.request.json()
                hidden: Collection[str] = ()
                if isinstance(fields, MessageFields):
                    hidden, topic = _MESSAGE, fields.timer_topic
                given |= {name: value for name, value in body.items() if name not in hidden}
        if topic is not None:
            given["timer_topic"] = topic
        if "handle" in given:
            timer = RecallHandle.decode(given["handle"])
            given |= {"id": timer.id, "source": timer.place}
        return given

    async def _require_closed(self) -> None:
        service = self.service
        topic = service.settings.serve.changes_topic
        if topic is not None and not service.changes_topic_is_closed:
            if await service.peek(is_open, topic):
                why = f"timers may have the target {topic}, and forge records: run `duewheel"
                raise ConfigError(f"{why} reconfigure`")
            service.changes_topic_is_closed = True

    async def _write(self, record: BegunChange, write: Lane[TimerWriter]) -> None:
        topic = self.service.settings.serve.changes_topic
        if topic is not None:
            key, value = record.change.encode(), json.dumps(record.as_json()).encode()
            await write(_write, topic, key, value)


async def _change(service: Shared, request: Request, response: Response, caller: Calling) -> Change:
    return Change(service, request, response, caller)


Changing = Annotated[Change, Depends(_change)]


def recorded(
    operation: Callable[Concatenate[Change, P], Awaitable[T]],
) -> Callable[Concatenate[Change, P], Awaitable[T]]:
    """Records each change of an operation of the API; a dry run is none."""

    @wraps(operation)
    async def made(change: Change, *args: P.args, **named: P.kwargs) -> T:
        if any(isinstance(each, DryRunFields) and each.dry_run for each in named.values()):
            return await operation(change, *args, **named)
        begun = await change.begin(named)
        try:
            result = await operation(change, *args, **named)
        except Exception as error:
            problem = refused_by(error)
            log.info("change failed", **begun.who, error=problem.code)
            await change.end(begun, int(problem.status), problem.code, **problem.others)
            raise
        log.info("change", **begun.who)
        status = change.response.status_code or change.request.scope["route"].status_code
        shown = result.model_dump(mode="json", by_alias=True, exclude=_SAMPLE)
        await change.end(begun, int(status or HTTPStatus.OK), result=shown)
        return result

    return made


def _write(writer: TimerWriter, topic: str, key: bytes, value: bytes) -> None:
    with writer.producer(topic) as producer:
        producer.send(topic, value, key).get(timeout=ACKNOWLEDGED_S)
