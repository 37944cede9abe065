"""Names in URLs: of timers, of timer topics; and as the last part, with slashes and line breaks, as
producers choose them.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor
from starlette.routing import Match
from starlette.types import Scope

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


class WithName(APIRoute):
    """An operation whose word, if any, follows the name: in `a%2Fnext` it is part of the name."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See APIRoute, whose paths have `%2F` decoded."""
        word = self.path.partition("}")[2].encode()
        return super().matches(scope) if scope["raw_path"].endswith(word) else (Match.NONE, {})


class _Text(Convertor[str]):
    # That of Starlette's `path` has no line break: each URL with one would be 404.
    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("text", _Text())
