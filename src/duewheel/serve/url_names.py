"""Names in URLs: of timers, of timer topics; and as the last part, with slashes and line breaks, as
producers choose them.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from starlette.convertors import Convertor, register_url_convertor

from duewheel.api.requests import Topic
from duewheel.client.handle import TEXT

HANDLE_MAX = 1_024
NAME = "{name:text}"

Handle = Annotated[
    str,
    Path(max_length=HANDLE_MAX, description="a recall handle", json_schema_extra={"pattern": TEXT}),
]
TimerTopic = Annotated[
    Topic | None, Query(description="the schedule's; by default the first of timer.topics")
]


class _Text(Convertor[str]):
    # That of Starlette's `path` has no line break: each URL with one would be 404.
    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("text", _Text())
