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

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import structlog
from fastapi import Depends, Request, Response

from duewheel.api.change_records import BegunChange, EndedChange
from duewheel.api.model import DryRunFields, RequestFields, Result
from duewheel.client.handle import RecallHandle
from duewheel.errors import DuewheelError
from duewheel.serve.access import Caller, Calling
from duewheel.serve.bulkhead import Lane
from duewheel.serve.problems import Refused, refused_by
from duewheel.serve.record_writer import RecordWriter
from duewheel.serve.service import Service, Shared

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T", bound=Result)

_SAMPLE = {"sample"}  # of a cancel by filter: keys of some of the timers


@dataclass(frozen=True)
class Change:
    """A request that changes something; `caller` is in its records."""

    service: Service
    request: Request
    response: Response
    caller: Caller

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
            arguments=self._arguments(named),
        )
        try:
            await self._write_to_topic(begun, self.service.record)
        except (DuewheelError, OSError) as error:
            log.warning("a change is refused without a record", **begun.who, reason=str(error))
            reason = refused_by(error).detail
            detail = f"nothing was changed, as the topic of changes has no record: {reason}"
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "not_recorded", detail) from error
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
        fields = {**dict(begun), "state": "ended", "ended_ms": self.service.clock.now_ms()}
        ended = EndedChange(**fields | counts, status=status, code=code, result=result)
        try:
            await self._write_to_topic(ended, self.service.record_end)
        except (DuewheelError, OSError, Refused) as error:
            log.warning("a change has no outcome in its topic", **begun.who, reason=str(error))

    def _arguments(self, named: Mapping[str, object]) -> dict[str, Any]:
        """Those of URL and body that the operation reads, without a message; and the timer that a
        handle names.
        """
        given: dict[str, Any] = dict(self.request.path_params)
        if (topic := named.get("timer_topic")) is not None:
            given["timer_topic"] = topic
        for fields in named.values():
            if isinstance(fields, RequestFields):
                given |= fields.as_recorded()
        if "handle" in given:
            timer = RecallHandle.decode(given["handle"])
            given |= {"id": timer.id, "source": timer.place, "former_due_ms": timer.due_ms}
        return given

    async def _write_to_topic(self, record: BegunChange, lane: Lane[RecordWriter]) -> None:
        topic = self.service.settings.serve.changes_topic
        if topic is not None:
            await lane(RecordWriter.write, topic, record)


async def _change(service: Shared, request: Request, response: Response, caller: Calling) -> Change:
    return Change(service, request, response, caller)


Changing = Annotated[Change, Depends(_change)]


def recorded(
    operation: Callable[Concatenate[Change, P], Awaitable[T]],
) -> Callable[..., Awaitable[T]]:
    """Records each change of an operation of the API; a dry run is none.

    Args:
        operation: its first argument is named `change`, as FastAPI gives all by name. Its
            `operation_id` is the name in the records; a request with `dry_run` is an argument.
    """

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
