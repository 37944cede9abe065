"""The JSON of errors; what operations take and return is in `duewheel.api`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ProblemDetails(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    code: str
    detail: str
