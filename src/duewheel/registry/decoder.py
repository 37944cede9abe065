"""The child process that asks the registry and decodes (values.py starts it and ends it).

Anyone may have written a schema or a body. A record that contains itself ends the process of
fastavro, a pattern may be matched for years, and a body of ten bytes decodes to any size: hence a
process of its own, with a bound of memory, which its parent ends if an answer takes too long.

Only the configured address is asked: by a number or a UUID, then by the subjects and versions that
the schema refers to; without redirects and proxies. The parent sends the address as JSON, then
three messages for each value: its topic, the number or UUID, and the body. There are two answers:
an empty one once the schema is there; then the kind of the schema in a line, before the value as
JSON, or an empty line or that of REGISTRY_FAILED, before a reason.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import ssl
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from multiprocessing.connection import Connection
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

from duewheel import extras
from duewheel.errors import DuewheelError
from duewheel.registry.formats import KINDS, NAME_MAX, Decode, as_json, reason

_TEXT_BYTES_MAX = 4 << 20  # of a value as JSON
_MEMORY_BYTES = 1 << 30  # address space
_SCHEMA_BYTES_MAX = 1 << 20  # of the registry's answer
_SCHEMAS_MAX = 500  # that are kept
_ASK_S = 3.0  # of one answer of the registry, from the connection on
_REST_S = 10.0  # a registry that cannot be reached is not asked again for so long
_REFERENCES_MAX = 100  # of a schema, also of those that it refers to
_REFERENCES_S = 5.0  # from the first question on: the parent does not wait for ever
_NO_SCHEMA = b"4040"  # of the registry's own codes; without them there is no such path
_FORGET_S = 60.0  # a schema that was not found, or in time, is asked for again after this
_FAILURES_MAX = 100  # schemas of one topic that are not found within that time

HAS_NO = "the registry has no "  # begins the reason of a schema that is not there
REGISTRY_FAILED = "-"  # in the place of a kind: the reason is the registry's, not the value's


class _Refused(DuewheelError):
    """The message says why a value is not decoded; `by_registry`: any value would be refused."""

    def __init__(self, why: str = "", *, by_registry: bool = False) -> None:
        super().__init__(why)
        self.by_registry = by_registry


class _NotRequested(_Refused):
    """The registry cannot be reached, or is not asked now."""


# ---- the registry -------------------------------------------------------------------------------


class _Registry:
    def __init__(self, url: str, authorization: str | None, ca_file: str | None) -> None:
        self._address = urlsplit(url)
        self._headers = {} if authorization is None else {"Authorization": authorization}
        self._ca_file = ca_file
        self._silence = ""  # why it could not be reached
        self._rests_until_s = 0.0
        self._failures = defaultdict[str, deque[float]](lambda: deque(maxlen=_FAILURES_MAX))

    def ask(self, topic: str, schema: str, path: str) -> Mapping[str, Any]:
        """The registry's description of a schema, for a value of this topic.

        Raises:
            _Refused: there is none.
        """
        now_s = time.monotonic()
        if now_s < self._rests_until_s:
            raise _NotRequested(self._silence, by_registry=True)
        failures = self._failures[topic]
        if len(failures) == _FAILURES_MAX and now_s < failures[0] + _FORGET_S:
            raise _NotRequested("too many schemas were not found: none is looked up for a minute")
        try:
            status, body = self._get(path)
        except (OSError, HTTPException, ValueError) as error:
            failures.append(now_s)
            why = f"the registry does not answer for {schema}: {_why(error)}"
            raise _Refused(why, by_registry=True) from error
        too_long = status == HTTPStatus.OK and len(body) > _SCHEMA_BYTES_MAX
        if status == HTTPStatus.OK and not too_long and (found := _description(body)):
            return found
        failures.append(now_s)
        if too_long:
            raise _Refused(f"{schema} has more than {_SCHEMA_BYTES_MAX >> 20} MiB")
        if status == HTTPStatus.NOT_FOUND and _NO_SCHEMA in body:
            raise _Refused(f"{HAS_NO}{schema}")
        why = f"the registry answered {status} for {schema}"
        if status == HTTPStatus.OK:
            why += " without a schema"
        if status in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}:
            why += f"; {self._address.path or '/'} may be the wrong path"
        raise _Refused(why, by_registry=True)

    def _get(self, path: str) -> tuple[int, bytes]:
        # The limit of a socket is that of one byte: the timer's is that of all.
        signal.setitimer(signal.ITIMER_REAL, _ASK_S)
        try:
            with closing(self._connected()) as connection:
                connection.request("GET", f"{self._address.path}{path}", headers=self._headers)
                answer = connection.getresponse()
                return answer.status, answer.read(_SCHEMA_BYTES_MAX + 1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _connected(self) -> HTTPConnection:
        """A connection. The registry rests if there is none; not after a late answer, of which the
        writer of the schema may be the cause.
        """
        try:
            connection = self._connection()
            connection.connect()
        except (OSError, HTTPException, ValueError) as error:
            self._silence = f"the registry does not answer: {_why(error)}"
            self._rests_until_s = time.monotonic() + _REST_S
            raise _NotRequested(self._silence, by_registry=True) from error
        return connection

    def _connection(self) -> HTTPConnection:
        if self._address.scheme == "http":
            return HTTPConnection(self._address.netloc, timeout=_ASK_S)
        context = ssl.create_default_context(cafile=self._ca_file)
        return HTTPSConnection(self._address.netloc, timeout=_ASK_S, context=context)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _description(body: bytes) -> Mapping[str, Any] | None:
    """A schema as the registry gives it; None: a page of a login or proxy, perhaps."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("schema"), str) else None


def _too_late(*_: object) -> NoReturn:
    raise TimeoutError


# ---- values -------------------------------------------------------------------------------------


class _Decoder:
    """Decodes values. Schemas stay, the failures for a minute. Each topic has its own, so that the
    many that one names displace none of another.
    """

    def __init__(self, registry: _Registry) -> None:
        self._registry = registry
        self._schemas: dict[tuple[str, str], tuple[float, str, Decode | _Refused]] = {}

    def schema(self, topic: str, schema: str) -> tuple[str, Decode | _Refused]:
        """The kind of a schema, and how it decodes; or why nothing is decoded by it."""
        until_s, kind, decode = self._schemas.pop((topic, schema), (0.0, "", _Refused()))
        if until_s < time.monotonic():
            try:
                until_s, kind, decode = self._read(topic, schema)
            except _NotRequested as error:
                return "", error
        if len(self._schemas) >= _SCHEMAS_MAX:
            ((most, _),) = Counter(of for of, _ in self._schemas).most_common(1)
            del self._schemas[next(each for each in self._schemas if each[0] == most)]
        self._schemas[topic, schema] = until_s, kind, decode
        return kind, decode

    @staticmethod
    def decoded(schema: str, kind: str, decode: Decode, body: bytes) -> bytes:
        """A value as JSON in UTF-8.

        Raises:
            _Refused: it is not decoded.
        """
        try:
            octets = as_json(decode(body)).encode(errors="replace")
        except Exception as error:
            why = reason(kind, error)
            raise _Refused(f"the value does not fit {kind} schema {schema} ({why})") from error
        if len(octets) > _TEXT_BYTES_MAX:
            raise _Refused(f"decoded, it has more than {_TEXT_BYTES_MAX >> 20} MiB")
        return octets

    def _read(self, topic: str, schema: str) -> tuple[float, str, Decode | _Refused]:
        try:
            return math.inf, *self._made(topic, schema)
        except _NotRequested:
            raise
        except _Refused as refused:
            why = refused
        except ModuleNotFoundError as error:
            why = _Refused(extras.remedy(error) or f"{error.name} is not installed")
        except ImportError as error:
            why = _Refused(str(error))
        except Exception as error:  # noqa: BLE001 - likewise
            why = _Refused(f"schema {schema} cannot be used ({reason('', error)})")
        return time.monotonic() + _FORGET_S, "", why

    def _made(self, topic: str, schema: str) -> tuple[str, Decode]:
        began_s = time.monotonic()
        path = f"/schemas/{'ids' if schema.isdecimal() else 'guids'}/{schema}"
        found = self._registry.ask(topic, f"schema {schema}", path)
        kind = found.get("schemaType", "AVRO")
        if kind not in KINDS:
            raise _Refused(f"schema {schema} is neither Avro nor JSON Schema nor Protobuf")
        referred = self._referred(topic, schema, found, began_s + _REFERENCES_S)
        try:
            return kind, KINDS[kind](found["schema"], referred)
        except ValueError:
            if kind != "PROTOBUF":
                raise
        # It was registered as source text: only the registry can compile that.
        found = self._registry.ask(topic, f"schema {schema}", f"{path}?format=serialized")
        return kind, KINDS[kind](found["schema"], referred)

    def _referred(
        self, topic: str, schema: str, description: Mapping[str, Any], until_s: float
    ) -> dict[str, str]:
        """The schemas that one refers to, by name, each after those that it refers to itself."""
        texts: dict[str, str] = {}
        query = "?deleted=true"  # none that is referred to has gone
        if description.get("schemaType") == "PROTOBUF":
            query += "&format=serialized"

        def follow(description: Mapping[str, Any]) -> None:
            for each in description.get("references") or ():
                name, subject, version = each["name"], each["subject"], int(each["version"])
                if name in texts:
                    continue
                size = sum(map(len, texts.values()))
                if len(texts) >= _REFERENCES_MAX or size > _SCHEMA_BYTES_MAX:
                    raise _Refused(f"schema {schema} refers to too many others")
                if time.monotonic() > until_s:
                    why = f"the registry takes too long for all that schema {schema} refers to"
                    raise _Refused(why, by_registry=True)
                path = f"/subjects/{quote(subject, safe='')}/versions/{version}{query}"
                what = f"version {version} of {subject[:NAME_MAX]!r}"
                other = self._registry.ask(topic, what, path)
                texts[name] = other["schema"]  # before it is followed: it may refer to itself
                follow(other)
                texts[name] = texts.pop(name)

        follow(description)
        return texts


def main() -> None:
    """Answers until the parent closes the connection, whose descriptor is the only argument."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it would have the credentials
    signal.signal(signal.SIGALRM, _too_late)
    with Connection(int(sys.argv[1])) as parent:
        decoder = _Decoder(_Registry(**json.loads(parent.recv_bytes())))
        while True:
            try:
                topic, schema = (parent.recv_bytes().decode() for _ in range(2))
                body = parent.recv_bytes()
            except EOFError:
                return
            kind, decode = decoder.schema(topic, schema)
            parent.send_bytes(b"")
            try:
                if isinstance(decode, _Refused):
                    raise decode
                text = decoder.decoded(schema, kind, decode, body)
            except _Refused as refused:
                kind, text = REGISTRY_FAILED * refused.by_registry, str(refused).encode()
            parent.send_bytes(kind.encode() + b"\n" + text)


if __name__ == "__main__":
    main()
