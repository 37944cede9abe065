"""Pauses of single targets, timer topics and tags: their records in the state topic.

A record for each of them, in the partition of shard 0, for all shards:

    key     pause/target/<topic>, pause/timer-topic/<topic> or pause/tag/<tag>
    value   JSON: when it ends by itself, null without an end; and a note. Or null: it has ended

So a pause outlasts restarts, the loss of a data directory, and a move to another host. While it
holds, the due timers concerned are parked (wheel/dequeue/fate.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.json_fields import MISSHAPEN, from_json, read_record, swap_json, to_json

FILE_NAME = "pauses"
PausedKind = Literal["target", "timer-topic", "tag"]
_PREFIX = "pause/"


class PauseRecord(NamedTuple):
    """A pause."""

    until_ms: int | None  # epoch milliseconds; None: until `resume`
    note: str = ""


class PausedTimers(NamedTuple):
    """The topics and tags whose timers wait at one moment: by commands, or because timer topics
    rest (kafka/targets/throttles.py).
    """

    targets: frozenset[str] = frozenset()
    timer_topics: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    slow_of: frozenset[str] = frozenset()  # timer topics whose timers for slow targets wait
    slow_alone: frozenset[str] = frozenset()  # the same, and those that share no transaction


NONE_PAUSED = PausedTimers()


class PausesFile(NamedTuple):
    """The pauses that dequeue follows, in a file: for `status`, and for the next start, which reads
    only later records. Replaced at every change, and once a minute.
    """

    of: Mapping[str, PauseRecord] = MappingProxyType({})  # by "kind/name"
    read_below: int = -1  # the offset below which the records are read; -1: none is

    def write(self, directory: Path) -> None:
        """Replaces the file.

        Raises:
            OSError: the disk is full, or fails; the old file stays.
        """
        swap_json(directory / FILE_NAME, to_json(self), HOST_FS)

    @classmethod
    def read(cls, directory: Path) -> PausesFile:
        """Reads the file; without pauses if it is missing or damaged."""
        return read_record(cls, directory / FILE_NAME) or cls()


def key_of(kind: PausedKind, name: str) -> bytes:
    """Makes the key of a pause's record."""
    return f"{_PREFIX}{kind}/{name}".encode(errors="surrogateescape")


def encoded(pause: PauseRecord | None) -> bytes:
    """Makes the value of a pause's record; None has ended. That is no empty value: compaction would
    remove it after a day, and a data directory that is older would stay paused.
    """
    return json.dumps(pause and to_json(pause)).encode()


def name_of(key: bytes) -> str | None:
    """Returns "kind/name" of a pause's key; None if it is another record's."""
    if not key.startswith(_PREFIX.encode()):
        return None
    name = key.decode(errors="replace").removeprefix(_PREFIX)
    kind, slash, _ = name.partition("/")
    return name if slash and kind in get_args(PausedKind) else None


def changed(
    pauses: Mapping[str, PauseRecord], records: Mapping[bytes, bytes]
) -> dict[str, PauseRecord]:
    """Returns the pauses after newer records, by "kind/name". A value that is no pause ends it:
    only this service writes there.
    """
    found = dict(pauses)
    for key, value in records.items():
        name = name_of(key)
        if name is None:
            continue
        found.pop(name, None)
        try:
            found[name] = from_json(PauseRecord, json.loads(value))
        except MISSHAPEN:
            continue
    return found


def in_force(pauses: Mapping[str, PauseRecord], now_ms: int) -> dict[str, PauseRecord]:
    """Returns the pauses that have not ended by themselves."""
    return {
        name: pause
        for name, pause in pauses.items()
        if pause.until_ms is None or now_ms < pause.until_ms
    }


def paused_at(pauses: Mapping[str, PauseRecord], now_ms: int) -> PausedTimers:
    """Returns the topics and tags that are paused at this moment."""
    names = [name.partition("/") for name in in_force(pauses, now_ms)]
    kinds = get_args(PausedKind)  # in the order of the fields
    return PausedTimers(*(frozenset(each for of, _, each in names if of == kind) for kind in kinds))
