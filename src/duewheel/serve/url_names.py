"""Names as the last part of a URL: with slashes, and line breaks, as producers choose them."""

from __future__ import annotations

from starlette.convertors import Convertor, register_url_convertor

NAME = "{name:text}"


class _Text(Convertor[str]):
    # That of Starlette's `path` has no line break: each URL with one would be 404.
    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("text", _Text())
