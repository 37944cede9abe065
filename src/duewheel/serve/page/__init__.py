"""The page: static files, served without a token, for they hold nothing of a shard.

The policy of the page permits scripts, styles and requests of this server alone, no code in the
markup, and no markup from strings (Trusted Types): ids, keys and messages are written by producers.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Path, Response

from duewheel.api.fact import instants
from duewheel.api.shard import ShardView
from duewheel.serve.problems import Refused

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
_INDEX = "index.html"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def page_files() -> dict[str, bytes]:
    """Returns the files of the page by name; `facts.js` has the declarations of api/shard.py."""
    folder = files(__package__)
    found = {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in _TYPES
    }
    names = json.dumps(sorted(instants(ShardView)))
    return found | {"facts.js": f"export const INSTANTS = new Set({names});\n".encode()}


_FILES = page_files()

router = APIRouter(include_in_schema=False)


@router.get("/", operation_id="page")
async def index() -> Response:
    """The page itself."""
    return _response(_INDEX)


@router.get("/page/{name}", operation_id="page_file")
async def part(name: Annotated[str, Path(max_length=100)]) -> Response:
    """A style, a script, or the icon."""
    if name not in _FILES or name == _INDEX:
        raise Refused(HTTPStatus.NOT_FOUND, "not_found", "the page has no such file")
    return _response(name)


def _response(name: str) -> Response:
    return Response(_FILES[name], media_type=_TYPES[name.rpartition(".")[2]], headers=HEADERS)
