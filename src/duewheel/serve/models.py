"""The JSON of errors; what operations take and return is in `duewheel.api`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

Responses = dict[int | str, dict[str, Any]]  # FastAPI's, by status


class ProblemDetails(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    code: str
    detail: str


def problem(status: int, description: str) -> Responses:
    """Describes the response of an error."""
    return {status: {"model": ProblemDetails, "description": description}}
