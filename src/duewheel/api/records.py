"""Records of a topic, as a consumer gets them."""

from __future__ import annotations

from pydantic import Field

from duewheel.api.model import Result


class ReadRecord(Result):
    """A committed record. Bytes that are no UTF-8 are escaped in its value and headers."""

    partition: int
    offset: int
    timestamp_ms: int
    key: str | None = Field(default=None, description="null: it has none")
    key_base64: str | None = Field(default=None, description="in place of key, if that is no UTF-8")
    value: str | None
    headers: list[tuple[str, str | None]]
    late_ms: int | None = Field(description="null: it has no TIMER_DUE_MS")
