"""Imports from a sorted set of Redis whose scores are due times.

The position is the score and the member of the last entry that was read: Redis orders members of
one score by their bytes. So nothing must be added while the set is imported: an entry that is added
before the position is missed, and counted at the end.

A member is a message as it is; or JSON, of which fields give its target, key, id and value.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from duewheel.checkpoints.import_position import Place
from duewheel.errors import ConfigError
from duewheel.ops.imports.source import DueMessage, Entry, SourceChunk, refused

_CHUNK_MEMBERS = 500
_NAME_CHARACTERS = 60  # of a member, in messages

Unit = Literal["s", "ms"]


@dataclass(frozen=True, slots=True)
class MemberFields:
    """The mapping of a member to a message.

    Attributes:
        topic: the target of all of them; None: the field `topic_field` of each has it.
        topic_field, key_field, id_field, value_field: fields of a member that is a JSON object;
            None: no key, an id derived from the member, and the whole member as the value.
        unit: of the scores.
    """

    topic: str | None = None
    topic_field: str | None = None
    key_field: str | None = None
    id_field: str | None = None
    value_field: str | None = None
    unit: Unit = "s"

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.topic_field is None):
            raise ConfigError("give either --topic, or --topic-field")

    def entry(self, name: str, member: bytes, score: float, timer_topic: str) -> Entry:
        """The entry of a member."""
        try:
            fields = self._fields(member)
            due_ms = round(score * (1_000 if self.unit == "s" else 1))
            message = DueMessage(
                name,
                due_ms,
                self.topic or _text(fields, self.topic_field) or "",
                _octets(_text(fields, self.key_field)),
                member if self.value_field is None else _octets(_text(fields, self.value_field)),
                _text(fields, self.id_field) or _digest(member),
            )
        except (ValueError, OverflowError, RecursionError) as error:
            return refused(name, f"the member, or its score, cannot be read: {error}")
        return message.entry(timer_topic)

    def _fields(self, member: bytes) -> Mapping[str, Any]:
        if not any((self.topic_field, self.key_field, self.id_field, self.value_field)):
            return {}
        fields = json.loads(member)
        if not isinstance(fields, dict):
            raise ValueError("it is no JSON object")  # noqa: TRY004 - as of json.loads
        return fields


def _text(fields: Mapping[str, Any], name: str | None) -> str | None:
    """The text of a field; JSON of one that is no text."""
    if name is None:
        return None
    if name not in fields:
        raise ValueError(f"it has no field {name!r}")
    value = fields[name]
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"))


def _digest(member: bytes) -> str:
    return hashlib.sha256(member).hexdigest()[:32]


def _octets(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


class RedisSetSource:
    """See ImportSource. Made by `redis_set_source`.

    Attributes:
        name, identity: see there.
    """

    name: str
    identity: Mapping[str, str]

    def __init__(self, client: Any, key: str, fields: MemberFields, timer_topic: str) -> None:
        """
        Args:
            client: of redis-py, which gives bytes.
            key: of the set.
            fields: the mapping.
            timer_topic: to which the timers will be written.
        """
        self._client, self._key = client, key
        self._fields, self._timer_topic = fields, timer_topic
        options = client.connection_pool.connection_kwargs
        place = options.get("path") or f"{options.get('host')}:{options.get('port')}"
        self.name = key
        self.identity = {
            "service": "redis",
            "address": f"{place}/{options.get('db') or 0}",
            "key": key,
        }

    def size(self, place: Place) -> int:
        """See ImportSource."""
        low = place.get("score", "-inf")
        return int(self._client.zcount(self._key, low, "+inf"))

    def missed(self, place: Place, read: int) -> int:
        """See ImportSource. Entries that were removed meanwhile may hide as many."""
        if not place:
            return 0
        before = int(self._client.zcount(self._key, "-inf", f"({place['score']}"))
        tied = self._client.zrangebyscore(self._key, place["score"], place["score"])
        last = base64.b64decode(place["member"])
        return max(0, before + len([member for member in tied if member <= last]) - read)

    def chunks(self, place: Place) -> Iterator[SourceChunk]:
        """See ImportSource."""
        while True:
            rows = self._behind(place)
            if not rows:
                return
            member, score = rows[-1]
            place = {"score": repr(score), "member": base64.b64encode(member).decode()}
            yield SourceChunk([self._entry(*row) for row in rows], place, len(rows))

    def _behind(self, place: Place) -> list[tuple[bytes, float]]:
        """The next entries behind a place, which need not exist any more."""
        if not place:
            return self._page("-inf", 0)
        last, start = base64.b64decode(place["member"]), 0
        while rows := self._page(place["score"], start):
            left = [row for row in rows if row[1] > float(place["score"]) or row[0] > last]
            if left:
                return left
            start += len(rows)
        return []

    def _page(self, low: str, start: int) -> list[tuple[bytes, float]]:
        rows: list[tuple[bytes, float]] = self._client.zrangebyscore(
            self._key, low, "+inf", start=start, num=_CHUNK_MEMBERS, withscores=True
        )
        return rows

    def _entry(self, member: bytes, score: float) -> Entry:
        shown = member.decode(errors="backslashreplace")
        if len(shown) > _NAME_CHARACTERS:
            shown = f"{shown[:_NAME_CHARACTERS]}… ({_digest(member)})"
        name = f"{self._key}@{score!r}:{shown}"
        return self._fields.entry(name, member, score, self._timer_topic)


@contextmanager
def redis_set_source(
    url: str, key: str, fields: MemberFields, timer_topic: str
) -> Iterator[RedisSetSource]:
    """Opens a source; closes its connection at the end of the with block.

    Args:
        url: such as redis://host:6379/0.
        key: of the sorted set.
        fields: the mapping of a member to a message.
        timer_topic: to which the timers will be written.

    Raises:
        ConfigError: Redis cannot be read, or there is no such set.
    """
    import redis

    try:
        client: Any = redis.Redis.from_url(url)
        with closing(client):
            kind = client.type(key)
            if kind != b"zset":
                raise ConfigError(f"{key!r} is no sorted set in Redis: {kind.decode()}")
            yield RedisSetSource(client, key, fields, timer_topic)
    except (redis.RedisError, ValueError) as error:
        raise ConfigError(f"Redis: {error}") from error
