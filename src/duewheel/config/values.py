"""The types of setting values: durations, sizes, topic names, secret tables.

Each is an annotated type for pydantic. It parses text from a file, the environment or a flag, and
formats values as text that it can parse again (except secrets, which become stars).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, SecretStr

from duewheel.config.durations import format_duration_ms, parse_duration_ms
from duewheel.errors import ConfigError
from duewheel.schemas.name_patterns import may_name_topic, of_shell, require_portable, whole

Option = str | int | float | bool

_UNIT_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_UNIT_BYTES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_PER_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*/\s*([smhd])")
_SIZE = re.compile(r"(\d+)\s*([a-zA-Z]*)")
_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:,\[\]]+):(\d{1,5})")
# Options with such names or values are secret: `config check` and errors show stars.
_SECRET_NAME = re.compile(
    r"pass(word|phrase|wd)|secret|token|credential|jaas|(^|[._-])(api)?key$"
    r"|(access|account)[._-]?key",
    re.IGNORECASE,
)
_NO_SECRET_NAME = re.compile(r"_(file|provider)$")  # a path, a function
_SECRET_VALUE = re.compile(r"(pass(word|phrase)|secret|token)\s*=", re.IGNORECASE)


def parse_size_bytes(text: str) -> int:
    """Parses "16MiB", "4 kB" or "1024"; returns bytes, or raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNIT_BYTES:
        raise ValueError(f'"{text}" is no size: a number and kB, MB, GB, KiB, MiB or GiB')
    return int(match[1]) * _UNIT_BYTES[match[2].lower()]


@dataclass(frozen=True, slots=True)
class Share:
    """A number of bytes, or a percentage of a whole."""

    bytes: int = 0
    percent: float = 0.0

    def of(self, whole_bytes: int) -> int:
        """The bytes of this share."""
        return self.bytes + int(whole_bytes * self.percent / 100)

    def __str__(self) -> str:
        return f"{self.percent:g}%" if self.percent else str(self.bytes)


def as_millis(duration: timedelta) -> int:
    """A duration in whole milliseconds."""
    return duration // timedelta(milliseconds=1)


def in_millis(value: Any) -> Any:
    """The value of a setting, a duration in whole milliseconds."""
    return as_millis(value) if isinstance(value, timedelta) else value


def is_secret(name: str, value: object = "") -> bool:
    """Whether an option of a pass-through table is secret."""
    is_named = _SECRET_NAME.search(name) and not _NO_SECRET_NAME.search(name)
    return bool(is_named or _SECRET_VALUE.search(str(value)))


def reveal(value: Option | SecretStr) -> Option:
    """The plain value, for a client."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _duration(value: object) -> object:
    if isinstance(value, str):
        return timedelta(milliseconds=parse_duration_ms(value))
    if isinstance(value, timedelta):
        return value
    raise ValueError('a duration needs its unit, such as "24h" or "50ms"')


def _millis(value: object) -> object:
    """Parses a duration; a bare number is milliseconds, because the key ends in `_ms`."""
    if isinstance(value, str) and not value.strip().isdecimal():
        return parse_duration_ms(value)
    return value


def _size(value: object) -> object:
    return parse_size_bytes(value) if isinstance(value, str) else value


def _share(value: object) -> object:
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            percent = float(value.strip()[:-1])
        except ValueError:
            percent = 0.0
        if not 0 < percent < 100:
            raise ValueError(f'"{value}" is no share: a number between 0 and 100, and %')
        return Share(percent=percent)
    try:
        size = _size(value)
    except ValueError as error:
        raise ValueError(f"{error}; or a share, such as 5%") from None
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return Share(size)
    return value


def _rate(value: object) -> object:
    """Parses "500/s" to a number per second."""
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not (per_second := float(match[1]) / _PER_S[match[2]]):
        raise ValueError(f'"{value}" is no rate: a number above 0, and /s, /m, /h or /d')
    return per_second


def show_rate(per_second: float) -> str:
    """Returns it as `rate` has it, such as "500/s"."""
    unit = next((unit for unit, seconds in _PER_S.items() if per_second * seconds >= 1), "d")
    return f"{per_second * _PER_S[unit]:.6g}/{unit}"


def _split(value: object) -> object:
    return tuple(filter(None, re.split(r"[,\s]+", value))) if isinstance(value, str) else value


def _not_empty(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("name at least one")
    return values


def _server_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+", text):
        raise ValueError(f'"{text}" is no address of a server, such as https://timers-0:8466')
    return text


def _registry_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", text):
        raise ValueError("it is no address of a registry, such as https://registry:8081")
    return text.rstrip("/")


def _topic(name: str) -> str:
    if not may_name_topic(name):
        raise ValueError(f'"{name}" is no topic name: 1 to 249 of a-z A-Z 0-9 . _ -')
    return name


def _header(name: str) -> str:
    # A header with a secret would be in the log.
    if not re.fullmatch(r"(?i)(?!authorization$|cookie$)[a-z0-9-]{1,100}", name):
        raise ValueError(f'"{name}" is no header with a name, such as X-Forwarded-User')
    return name


def accepted_by(check: Callable[[str], object]) -> AfterValidator:
    """A text that the check does not refuse by a ConfigError."""

    def validate(text: str) -> str:
        try:
            check(text)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return text

    return AfterValidator(validate)


def _server(server: str) -> str:
    match = _SERVER.fullmatch(server)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise ValueError(f'"{server}" is no host:port')
    return server


def _decode_table(value: object) -> object:
    """Decodes a table that the environment or a flag gives as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        # The decoder's own message could quote the text, which may hold a secret.
        raise ValueError("a table given as text must be one JSON object") from None


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Joins dotted names, because TOML reads an unquoted a.b.c = 1 as nested tables."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def topic_tables(value: object) -> object:
    """Joins the names of topics, because TOML reads an unquoted [timer.topic.orders.delayed] as
    nested tables.
    """
    value = _decode_table(value)
    if not isinstance(value, Mapping):
        return value
    joined: dict[str, Any] = {}
    for name, table in _tables(value, ""):
        known = joined.get(name)
        both = isinstance(known, dict) and isinstance(table, dict)
        joined[name] = known | table if both else table
    return joined


def _tables(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if not isinstance(value, Mapping):
            yield prefix + name, value
            continue
        own = {key: each for key, each in value.items() if not isinstance(each, Mapping)}
        if own or not value:
            yield prefix + name, own
        inner = {key: each for key, each in value.items() if isinstance(each, Mapping)}
        yield from _tables(inner, f"{prefix}{name}.")


def _options(value: object) -> object:
    value = _decode_table(value)
    if not isinstance(value, Mapping):
        return value
    options = _flatten(value)
    for name, option in options.items():
        if isinstance(option, Option) and is_secret(name, option):
            options[name] = SecretStr(str(option))
    return options


def _show_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, SecretStr) else v for k, v in options.items()}


def _show_duration(duration: timedelta) -> str:
    return format_duration_ms(as_millis(duration))


Duration = Annotated[
    timedelta, BeforeValidator(_duration), PlainSerializer(_show_duration, return_type=str)
]
PerSecond = Annotated[float, BeforeValidator(_rate), PlainSerializer(show_rate, return_type=str)]
Millis = Annotated[int, BeforeValidator(_millis)]
Size = Annotated[int, BeforeValidator(_size)]
SizeOrShare = Annotated[Share, BeforeValidator(_share), PlainSerializer(str, return_type=str)]
TopicName = Annotated[str, AfterValidator(_topic)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
ServerUrl = Annotated[str, AfterValidator(_server_url)]
ServerUrls = Annotated[tuple[ServerUrl, ...], BeforeValidator(_split)]
RegistryUrl = Annotated[str, AfterValidator(_registry_url)]
Topics = Annotated[tuple[TopicName, ...], BeforeValidator(_split)]
TopicPattern = Annotated[str, accepted_by(lambda regex: require_portable(whole(regex)))]
_Target = Annotated[str, accepted_by(lambda pattern: of_shell([pattern]))]
TargetPatterns = Annotated[tuple[_Target, ...], BeforeValidator(_split)]
_Server = Annotated[str, AfterValidator(_server)]
Servers = Annotated[tuple[_Server, ...], BeforeValidator(_split), AfterValidator(_not_empty)]
Durations = Annotated[tuple[Duration, ...], BeforeValidator(_split), AfterValidator(_not_empty)]
HeaderName = Annotated[str, AfterValidator(_header)]
_Value = TypeVar("_Value")
TopicTable = Annotated[dict[TopicName, _Value], BeforeValidator(_decode_table)]
Options = Annotated[
    dict[str, bool | int | float | str | SecretStr],
    BeforeValidator(_options),
    PlainSerializer(_show_options, return_type=dict[str, Any]),
]
