"""Decodes values in a child process (decoder.py), which the first value starts.

Whatever a schema or a body does to it, there is the value or a short reason in bounded time; a
child that does not answer is killed, and the next value gets another one. A child that ends may
have been killed by the kernel, which lacked memory: its value is tried once more in another.
"""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import NamedTuple

from duewheel.config.credentials import secret_in
from duewheel.config.keys_and_defaults import RegistrySection
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.osutil.child_process import Child
from duewheel.registry.decoder import REGISTRY_FAILED
from duewheel.schemas.wire.schema_number import HEADER, schema_and_body

ANSWER_S = 10.0  # until a schema is read, and perhaps a library imported
VALUE_S = 3.0  # then of the value
_ENDS_MAX = 5  # of the child by values of one topic, within _BAN_S: then none is decoded
_ENDS_OF_SCHEMA_MAX = 3  # likewise, by values of one schema
_ENDED_S = 600.0  # for so long the end of a child is remembered
_BAN_S = 60.0  # what has ended the child is not decoded for so long; after the next time, _ENDED_S
# Of values of one topic, their schemas and the registry's answers included, within _ENDED_S: its
# writers choose how long one takes, and an audit has many. It is room for a million ordinary ones,
# the default audit.rows_max: these take 140 s in Avro or Protobuf, 350 s in JSON Schema.
_TOPIC_S = 400.0
_VALUE_BYTES_MAX = 8 << 20
_ANSWER_BYTES_MAX = 8 << 20  # more than the child sends


class Decoded(NamedTuple):
    """A value that names a schema: as JSON with the schema, or the reason why not."""

    decoded: str | None
    decoded_by: str | None
    not_decoded: str | None
    registry_failed: bool = False  # the reason is the registry's, whatever the value is
    out_of_time: bool = False  # it was not tried: its topic has taken _TOPIC_S


class _End(NamedTuple):
    """Of a child, by a value or by reading its schema."""

    counts_until_s: float  # for others of the topic and the schema
    banned_until_s: float
    forgotten_s: float
    why: str


class RegistryValues:
    """Decodes values, one at a time, for any threads."""

    def __init__(self, registry: RegistrySection) -> None:
        self._registry = registry
        self._lock = threading.Lock()  # of all below
        self._child: tuple[Child, Connection] | None = None
        # What has ended the child: topic, schema and hash of the body, or None if reading the
        # schema has. Other topics have values of the schema, too.
        self._ended: dict[tuple[str, str, int | None], _End] = {}
        self._taken: dict[str, tuple[float, float]] = {}  # by topic, until when, and how many s

    def decoded(
        self, topic: str, headers: Collection[tuple[str, bytes | None]], value: bytes | None
    ) -> Decoded | None:
        """Decodes a value that was written to a topic, or says why not; None: it names no schema.
        What its writers do bounds the values of no other topic.
        """
        found = None if value is None else schema_and_body(headers, value)
        if found is None:
            wrong = value is not None and any(n == HEADER and each for n, each in headers)
            return Decoded(None, None, f"{HEADER} names no schema") if wrong else None
        schema, body = str(found[0]), found[1]
        if len(body) > _VALUE_BYTES_MAX:
            return Decoded(None, None, f"it has more than {_VALUE_BYTES_MAX >> 20} MiB")
        if not self._lock.acquire(timeout=ANSWER_S):
            return Decoded(None, None, "other values are being decoded")
        try:
            began_s = time.monotonic()
            until_s, taken_s = self._taken.get(topic, (0.0, 0.0))
            if until_s <= began_s:
                until_s, taken_s = began_s + _ENDED_S, 0.0
            if taken_s > _TOPIC_S:
                why = f"values of {topic} take the decoder too long"
                return Decoded(None, None, why, out_of_time=True)
            kind, text = self._answer(topic, schema, body)
            self._taken[topic] = until_s, taken_s + time.monotonic() - began_s
        finally:
            self._lock.release()
        if kind in {"", REGISTRY_FAILED}:
            return Decoded(None, None, text, registry_failed=kind == REGISTRY_FAILED)
        return Decoded(text, f"{kind} schema {schema}", None)

    def _answer(self, topic: str, schema: str, body: bytes) -> tuple[str, str]:
        """The kind of the schema, and the value; or nothing or REGISTRY_FAILED, and a reason."""
        if why := self._refusal(topic, schema, body):
            return "", why
        if self._child is not None and self._child[1].poll():  # it has ended while no value was
            self._end()
        return self._tried(topic, schema, body)

    def _tried(
        self, topic: str, schema: str, body: bytes, *, again: bool = False
    ) -> tuple[str, str]:
        ended_by: int | None = None  # before the value is decoded
        what = f"schema {schema}"
        try:
            self._child = self._child or self._started()
            _, connection = self._child
            for part in (topic.encode(), schema.encode(), body):
                connection.send_bytes(part)
            _received(connection, ANSWER_S)
            ended_by, what = hash(body), f"this value of schema {schema}"
            kind, _, text = _received(connection, VALUE_S).partition("\n")
            return kind, text
        except DuewheelError as error:
            return REGISTRY_FAILED, str(error)
        except (OSError, EOFError) as error:
            self._end()
            ended, now_s = (topic, schema, ended_by), time.monotonic()
            late = isinstance(error, TimeoutError)
            if not (late or again or ended in self._ended):
                answer = self._tried(topic, schema, body, again=True)
                # Remembered, too: else such values could start processes for ever.
                self._ended.setdefault(ended, _End(now_s + _BAN_S, now_s, now_s + _BAN_S, ""))
                return answer
            why = f"{what} {error if late else 'ends the process that decodes'}"
            ban_s = _ENDED_S if ended in self._ended else _BAN_S
            forgotten_s = now_s + _ENDED_S
            self._ended[ended] = _End(now_s + _BAN_S, now_s + ban_s, forgotten_s, why)
            return "", why
        except BaseException:  # its answer would be that of the next value
            self._end()
            raise

    def _refusal(self, topic: str, schema: str, body: bytes) -> str | None:
        """Why a value is not decoded: because of those before it."""
        now_s = time.monotonic()
        self._ended = {n: each for n, each in self._ended.items() if each.forgotten_s > now_s}
        for known in (None, hash(body)):
            ended = self._ended.get((topic, schema, known))
            if ended is not None and ended.banned_until_s > now_s:
                return ended.why
        counting = [n for n, each in self._ended.items() if each.counts_until_s > now_s]
        schemas = [each for of, each, _ in counting if of == topic]
        if len(schemas) >= _ENDS_MAX:
            return f"values of {topic} have ended the decoder too often"
        if schemas.count(schema) >= _ENDS_OF_SCHEMA_MAX:
            return f"values of {topic} and schema {schema} have ended the decoder too often"
        return None

    def _started(self) -> tuple[Child, Connection]:
        """Starts a child that knows the registry.

        Raises:
            DuewheelError: a secret cannot be read, or there is no room for a process.
        """
        ca_file = self._registry.ca_file
        known = {
            "url": self._registry.url,
            "authorization": _authorization(self._registry),
            "ca_file": None if ca_file is None else str(ca_file.expanduser()),
        }
        ours, its = socket.socketpair()
        with its:
            child = Child(
                [sys.executable, "-P", "-m", "duewheel.registry.decoder", str(its.fileno())],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )
        connection = Connection(ours.detach())
        connection.send_bytes(json.dumps(known).encode())
        return child, connection

    def _end(self) -> None:
        if self._child is not None:
            child, connection = self._child
            self._child = None
            connection.close()
            child.end(signal.SIGKILL, ANSWER_S)


def _received(connection: Connection, within_s: float) -> str:
    if not connection.poll(within_s):
        raise TimeoutError(f"takes more than {within_s:g} s")
    return connection.recv_bytes(_ANSWER_BYTES_MAX).decode()


def _authorization(registry: RegistrySection) -> str | None:
    if registry.token_file is not None:
        return f"Bearer {secret_in(registry.token_file.expanduser(), 'registry.token_file')}"
    if registry.password_file is None:
        return None
    password = secret_in(registry.password_file.expanduser(), "registry.password_file")
    return f"Basic {base64.b64encode(f'{registry.user}:{password}'.encode()).decode()}"


_values_of = lru_cache(maxsize=4)(RegistryValues)


def registry_values(settings: Settings) -> RegistryValues | None:
    """Returns the decoder of these settings, one in a process; None: they name no registry."""
    return None if settings.registry.url is None else _values_of(settings.registry)


def decoded_fields(
    settings: Settings,
    topic: str,
    headers: Iterable[tuple[str, bytes | None]],
    value: bytes | None,
) -> dict[str, str]:
    """Returns the fields of WithDecoded (api/messages.py) that a value of a topic has."""
    values = registry_values(settings)
    if values is None:
        return {}
    found = values.decoded(topic, [each for each in headers if each[0] == HEADER], value)
    if found is None:
        return {}
    fields = found._asdict().items()
    return {name: text for name, text in fields if isinstance(text, str)}
