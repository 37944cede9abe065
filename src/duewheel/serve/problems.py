"""Errors as problem details (RFC 9457): `application/problem+json`.

`code` is for programs. No problem quotes a message or a token. It is ASCII: an error may quote half
of a surrogate pair, which JSON can write and UTF-8 cannot.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from duewheel.api.model import problems_of
from duewheel.errors import DuewheelError, Problem, Unacknowledged

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = "5"
_ERRORS_MAX = 20  # of a problem's `errors`: a body has a hundred thousand fields, perhaps


class Stopping(DuewheelError):
    """The server stops. The request may be sent again: it has written nothing, or is a replay,
    which a later one continues.
    """

    problem = Problem(503, "stopping")


Responses = dict[int | str, dict[str, Any]]  # FastAPI's, by status


class ProblemDetails(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    code: str
    detail: str


def documented(status: int, description: str) -> Responses:
    """Describes the response of an error."""
    return {status: {"model": ProblemDetails, "description": description}}


class ProblemResponse(JSONResponse):
    """Problem details as a response; leaves their code in the scope, for metrics.py."""

    media_type = MEDIA_TYPE

    def __init__(self, content: dict[str, Any], status: int, headers: Mapping[str, str]) -> None:
        super().__init__(content, status, headers)
        self._code = content["code"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["problem"] = self._code
        await super().__call__(scope, receive, send)

    def render(self, content: Any) -> bytes:
        """See JSONResponse."""
        return json.dumps(content, separators=(",", ":")).encode()


class Refused(Exception):
    """A request that is answered with a problem; `others` are further members of it. One without
    effect that may succeed later (503) has Retry-After.
    """

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        # A retry of an unacknowledged change (504) could write it twice: no header invites to it.
        again = {"Retry-After": RETRY_AFTER_S} if status is HTTPStatus.SERVICE_UNAVAILABLE else {}
        self.headers, self.others = {**again, **(headers or {})}, others

    def response(self) -> ProblemResponse:
        """The problem as a response."""
        content = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": int(self.status),
            "code": self.code,
            "detail": self.detail,
            **self.others,
        }
        return ProblemResponse(content, int(self.status), self.headers)


def busy(detail: str) -> Refused:
    """Returns the problem of a request for which there is no room: nothing of it was done."""
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "busy", detail)


def refused_by(error: Exception) -> Refused:
    """Returns the problem of an error."""
    if isinstance(error, Refused):
        return error
    status, code, text = (error if isinstance(error, DuewheelError) else DuewheelError).problem
    counts: dict[str, Any] = error.counts if isinstance(error, Unacknowledged) else {}
    return Refused(HTTPStatus(status), code, text or str(error), **counts)


def answer_errors(app: FastAPI) -> None:
    """Makes the app answer each error with a problem; gate.py answers defects."""
    problems: tuple[tuple[type[Exception], Callable[[Any], Refused]], ...] = (
        (Refused, refused_by),
        (DuewheelError, _logged),
        (RequestValidationError, _invalid),
        (HTTPException, _of_router),
    )
    for kind, problem_of in problems:
        app.add_exception_handler(kind, _answering(problem_of))


def _answering(
    problem_of: Callable[[Any], Refused],
) -> Callable[[Request, Exception], Awaitable[ProblemResponse]]:
    async def answer(_: Request, error: Exception) -> ProblemResponse:  # else it needs a thread
        return problem_of(error).response()

    return answer


def _logged(error: DuewheelError) -> Refused:
    if error.problem.text:
        trace = error if error.problem.status == HTTPStatus.INTERNAL_SERVER_ERROR else None
        log.error("a request has failed", reason=str(error), exc_info=trace)
    return refused_by(error)


def _invalid(error: RequestValidationError) -> Refused:
    problems = problems_of(error.errors()[:_ERRORS_MAX])
    errors = [{"in": field, "detail": text} for field, text in problems]
    detail = "; ".join(f"{each['in']}: {each['detail']}" for each in errors)
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return Refused(status, "invalid_request", detail, errors=errors)


def _of_router(error: HTTPException) -> Refused:
    """No such path, or no such method of it."""
    status = HTTPStatus(error.status_code)
    return Refused(status, status.name.lower(), str(error.detail), error.headers)
