"""The settings that apply to the messages of one timer topic.

    headers     which names request headers have: "native" (duewheel's own), or those of another
                delay service: "etf1", "karafka", "eifinger"
    id          where a timer's id is: "header" (UNIQ_KEY), or "key": without that header the
                record's key is the id, and a timer replaces the earlier ones of the same id
    null_value  the meaning of a record with a key and without a value: "message", or "cancel": it
                cancels the timers whose id is its key
    target      the target of messages that name none
    targets     patterns of the targets that messages may name beside it; none: all of them are
                open. No configuration leaves it out (config/keys_and_defaults.py)
    delay_ms    the delay of messages without a requested time
    max_delay_ms  the longest delay of its messages, where that is less than that of all
    past_due    the outcome of a message that is due at its record's timestamp or before: "fire"
                (at once), or "dead-letter"
    value_schema  "registry": a value begins with the number of its schema in a registry; "none": it
                may be any bytes
    recurring   whether its messages may be recurring timers. Each of them costs for as long as it
                lives, not once, and none has a longest delay: the operator opens a topic for them

The other services have no ids but keys, and cancel by null values: their modes imply both. Of this
only `targets` applies to copies (request_columns.py), which have the rest in their own headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from duewheel.errors import ConfigError
from duewheel.schemas.header_names import DROP_IN
from duewheel.schemas.name_patterns import of_shell

NATIVE = "native"
HEADER, KEY = "header", "key"
MESSAGE, CANCEL = "message", "cancel"
FIRE, DEAD_LETTER = "fire", "dead-letter"
NO_SCHEMA, REGISTRY = "none", "registry"
CHOICES: Mapping[str, tuple[str, ...]] = {
    "headers": (NATIVE, *DROP_IN),
    "id": (HEADER, KEY),
    "null_value": (MESSAGE, CANCEL),
    "past_due": (FIRE, DEAD_LETTER),
    "value_schema": (NO_SCHEMA, REGISTRY),
}
"""The values of each choice, the default first."""


@dataclass(frozen=True, slots=True)
class TopicContract:
    """The settings of one timer topic; see the module's head."""

    headers: str = NATIVE
    id: str = HEADER
    null_value: str = MESSAGE
    target: str | None = None
    targets: tuple[str, ...] | None = None
    delay_ms: int | None = None
    max_delay_ms: int | None = None
    past_due: str = FIRE
    recurring: bool = False
    value_schema: str = NO_SCHEMA

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"{name}: {value!r} is none of {', '.join(choices)}")
        if not isinstance(self.recurring, bool):
            raise ConfigError(f"recurring: {self.recurring!r} is neither true nor false")
        if self.target is not None and not isinstance(self.target, str):
            raise ConfigError(f"target: {self.target!r} is no topic")
        if self.targets is not None:
            of_shell(self.targets)
        for name, delay in (("delay", self.delay_ms), ("max_delay", self.max_delay_ms)):
            if delay is not None and not (type(delay) is int and delay >= 0):
                raise ConfigError(f"{name}: {delay!r} is no number of milliseconds from 0")

    @property
    def key_is_id(self) -> bool:
        """Whether the key of a record without an id is the id."""
        return self.id == KEY or self.headers != NATIVE

    @property
    def null_cancels(self) -> bool:
        """Whether a record with a key and without a value is a cancel."""
        return self.null_value == CANCEL or self.headers != NATIVE

    @property
    def open_targets(self) -> list[str]:
        """The names and patterns of the targets that its messages may have, its own first."""
        own = () if self.target is None else (self.target,)
        return list(dict.fromkeys([*own, *(self.targets or ())]))

    @property
    def listed_targets(self) -> str | None:
        """A regular expression for the targets that its messages may have beside its own; None: all
        of them.
        """
        return None if self.targets is None else _any_of(self.targets)

    def to_json(self) -> dict[str, Any]:
        """The values that differ from the default."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.targets is not None:
            values["targets"] = list(self.targets)
        return {f.name: values[f.name] for f in fields(self) if values[f.name] != f.default}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TopicContract:
        """The inverse of `to_json`; raises ConfigError or TypeError for values of another form."""
        if "targets" in values:
            values = {**values, "targets": tuple(values["targets"])}
        return cls(**values)


@lru_cache(maxsize=1_000)
def _any_of(patterns: tuple[str, ...]) -> str:
    return of_shell(patterns)


DEFAULT = TopicContract()
