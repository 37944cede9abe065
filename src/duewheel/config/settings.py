"""Loads the settings, once per process; they are frozen, and handed in.

Precedence, rising: defaults, the file (`--config`, else DUEWHEEL_CONFIG, else ./duewheel.toml if it
exists), environment (DUEWHEEL_<SECTION>__<KEY>), flags. No value is clamped: an unknown key, an
impossible value and a contradiction are refused, and one error lists all of them.

    keys_and_defaults.py   each key with its text, kind and default
    values.py              the kinds
    contradictions.py      rules between keys

Durations: "24h", "1h30m"; keys that end in `_ms` also take a bare number. Sizes: "16MiB" or bytes.
Lists: TOML lists, or separated by commas. The tables [kafka.client] and [spark] are passed through;
in the environment they are single keys or one JSON object, as [timer.topic] is. Their secrets, by
name, are held as SecretStr and never shown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from duewheel.config.contradictions import contradictions
from duewheel.config.keys_and_defaults import (
    AppSection,
    AuditSection,
    DequeueSection,
    IngestSection,
    KafkaSection,
    LogSection,
    MetricsSection,
    RegistrySection,
    RelaySection,
    ServeSection,
    ShardSection,
    StorageSection,
    TargetTable,
    TimerSection,
    TimerTopic,
    TracesSection,
    as_text,
)
from duewheel.config.nearest_name import nearest
from duewheel.config.sources import (
    DEFAULT_FILE,
    ENV_PREFIX,
    FILE_VARIABLE,
    find_file,
    read_environment,
    read_file,
)
from duewheel.config.values import Options, TopicName, as_millis, in_millis, reveal, topic_tables
from duewheel.errors import ConfigError, NoDataDirectory
from duewheel.schemas.name_patterns import TimerTopics
from duewheel.wheel.slots import WheelConfig


class Settings(BaseModel):
    """All settings, frozen. Made by `load`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    app: AppSection = AppSection()
    kafka: KafkaSection = KafkaSection()
    timer: TimerSection
    target: Annotated[dict[TopicName, TargetTable], BeforeValidator(topic_tables)] = Field(
        default_factory=dict, description="A table for each target with settings of its own: below."
    )
    ingest: IngestSection = IngestSection()
    dequeue: DequeueSection = DequeueSection()
    relay: RelaySection = RelaySection()
    registry: RegistrySection = RegistrySection()
    storage: StorageSection = StorageSection()
    shard: ShardSection = ShardSection()
    audit: AuditSection = AuditSection()
    metrics: MetricsSection = MetricsSection()
    traces: TracesSection = TracesSection()
    serve: ServeSection = ServeSection()
    log: LogSection = LogSection()
    spark: Options = Field(
        default_factory=dict,
        description="Any setting of Spark itself, under its own name in quotation marks, such as "
        '`"spark.ui.enabled" = true`.',
    )

    _set_by: tuple[tuple[str, frozenset[str]], ...] = PrivateAttr(default=())
    _loaded_from: tuple[Path | None, Mapping[str, Any]] = PrivateAttr(default=(None, {}))

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        problems = list(contradictions(self))
        if problems:
            raise _Contradictions(problems)
        return self

    @property
    def dead_letter_topic(self) -> str:
        """The topic of the dead letters."""
        return self.timer.dead_letter_topic or f"{self.app.id}.dead-letter"

    @property
    def state_topic(self) -> str:
        """The topic of the progress."""
        return self.timer.state_topic or f"{self.app.id}.state"

    @property
    def rates(self) -> dict[str, float]:
        """The timers per second that a shard may send to each target with a rate."""
        rates = ((name, table.rate) for name, table in self.target.items())
        return {name: rate / self.shard.count for name, rate in rates if rate is not None}

    @property
    def service_topics(self) -> dict[str, str]:
        """Own topics beside the timer topics, by key of the setting; never targets."""
        topics = {
            "timer.dead_letter_topic": self.dead_letter_topic,
            "timer.state_topic": self.state_topic,
            "timer.reply_topic": self.timer.reply_topic,
            "timer.receipts_topic": self.timer.receipts_topic,
            "serve.changes_topic": self.serve.changes_topic,
        }
        return {key: topic for key, topic in topics.items() if topic is not None}

    @property
    def timer_topics(self) -> TimerTopics:
        """The names and the pattern of the timer topics."""
        never = frozenset(self.service_topics.values())
        return TimerTopics(self.timer.topics, self.timer.topics_pattern, never)

    @property
    def audit_dir(self) -> Path:
        """The folder of the audits."""
        return self.storage.audit_dir or self.storage.data_dir / "audit"

    @property
    def wheel(self) -> WheelConfig:
        """The wheel's geometry."""
        timer = self.timer
        return WheelConfig(
            precision_ms=timer.precision_ms,
            slots=timer.slots,
            window_ms=as_millis(timer.roll_window),
            margin_ms=as_millis(timer.margin),
            timeline=timer.timeline,
        )

    def of(self, key: str) -> Any:
        """The value of a key, such as `dequeue.hot_slot`; a duration in ms."""
        return in_millis(attrgetter(key)(self))

    def by_topic(self, key: str) -> dict[str, Any]:
        """Returns the values of a key that are not its default by timer topic, durations in ms."""
        default = TimerTopic.model_fields[key].default
        values = {name: getattr(table, key) for name, table in self.timer.topic.items()}
        return {name: in_millis(value) for name, value in values.items() if value != default}

    def source(self, key: str) -> str:
        """The source of a key's value: "default", the file's path, "environment" or "flags"."""
        found = (source for source, keys in reversed(self._set_by) if key in keys)
        return next(found, "default")

    def reloaded(self) -> Settings:
        """Loads the same file, which may have been edited, with the same flags."""
        return load(*self._loaded_from)

    def no_data_dir(self) -> NoDataDirectory:
        """The error of a command that finds no data directory; has the place and its source."""
        path, source = self.storage.data_dir.absolute(), self.source("storage.data_dir")
        return NoDataDirectory(path, f" (storage.data_dir, {source})")

    def spark_conf(self) -> dict[str, str]:
        """The table [spark], in clear."""
        return {name: as_text(reveal(value)) for name, value in self.spark.items()}

    def redacted(self) -> dict[str, Any]:
        """All values in effect, ready for JSON, secrets as stars."""
        shown = self.model_dump(mode="json")
        shown["timer"]["dead_letter_topic"] = self.dead_letter_topic
        shown["timer"]["state_topic"] = self.state_topic
        shown["storage"]["audit_dir"] = str(self.audit_dir)
        return shown


def load(
    config_file: Path | str | None = None, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """Reads, merges and checks the settings. The flag `--config` is `config_file`; `overrides` has
    the other flags, nested as the sections are, and None for those that are not given.

    Raises:
        ConfigError: lists every problem with its key and the source of the value.
    """
    layers: list[tuple[str, dict[str, Any]]] = []
    path = find_file(config_file)
    if path is not None:
        layers.append((str(path), read_file(path)))
    given = read_environment()  # also has DUEWHEEL_CONFIG, and variables that others read
    known = {name: table for name, table in given.items() if name in Settings.model_fields}
    layers.append(("environment", known))
    layers.append(("flags", _without_none(overrides or {})))
    merged: dict[str, Any] = {}
    for _, layer in layers:
        merged = _merge(merged, layer)
    problems = list(_stray_variables())
    try:
        settings = Settings(**merged)
        settings._set_by = tuple((source, frozenset(_keys(layer))) for source, layer in layers)
        settings._loaded_from = (path, overrides or {})
    except ValidationError as error:
        problems += [_explain(key, text, layers) for key, text in _problems(error)]
    except UnicodeEncodeError:
        problems.append("  a value holds bytes that are no UTF-8 (environment or flags)")
    if path is None and "timer" not in merged:
        problems.append(_smallest_file())
    if problems:
        # Raised outside the handler: a chained validation error would show the input, secrets too.
        read = "no file" if path is None else str(path.absolute())
        raise ConfigError("\n".join([f"the configuration cannot be used ({read}):", *problems]))
    return settings


# ---- contradictions -----------------------------------------------------------------------------


class _Contradictions(ValueError):
    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {text}" for key, text in problems))
        self.problems = problems


# ---- sources ------------------------------------------------------------------------------------


def _smallest_file() -> str:
    return (
        f"No configuration file was found: neither --config nor {FILE_VARIABLE} names one, and "
        f"{DEFAULT_FILE.absolute()} does not exist. The smallest one, for a Kafka at "
        "localhost:9092:\n\n"
        '    [timer]\n    topics = ["orders.delayed"]\n    targets = ["orders"]\n'
    )


def _stray_variables() -> Iterator[str]:
    """Yields an error for each variable that looks like a setting, but would be ignored."""
    for variable in sorted(os.environ):
        name = variable.upper().removeprefix(ENV_PREFIX)
        if not variable.upper().startswith(ENV_PREFIX) or name == "CONFIG":
            continue
        section, nested, _ = name.lower().partition("__")
        if nested and section not in Settings.model_fields:
            hint = nearest(section, Settings.model_fields)
            yield f"  {variable}: there is no section [{section}]{hint} (environment)"
        elif not nested and section.split("_")[0] in Settings.model_fields and "_" in section:
            yield f"  {variable}: two underscores go between section and key (environment)"


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def _keys(layer: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields the dotted key of every value and table that a layer sets, those in JSON, too."""
    for key, value in layer.items():
        yield prefix + key
        if isinstance(value, str):
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


# ---- problems and their sources -----------------------------------------------------------------


def _problems(error: ValidationError) -> Iterator[tuple[str, str]]:
    for detail in error.errors(include_url=False):
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, _Contradictions):
            yield from cause.problems
        else:
            yield ".".join(str(part) for part in detail["loc"]), _sentence(detail)


def _sentence(detail: ErrorDetails) -> str:
    """A pydantic error as a sentence, without the value, which may be a secret."""
    if detail["type"] == "extra_forbidden":
        *parents, name = (str(part) for part in detail["loc"])
        known = _fields_at(parents)
        return f"there is no such key{nearest(name, known)}"
    if detail["type"] == "missing":
        return "must be set"
    if detail["type"] == "model_type":
        return "must be a table"
    return detail["msg"].removeprefix("Value error, ")


def _fields_at(parents: list[str]) -> Mapping[str, FieldInfo]:
    section: Any = Settings
    for parent in parents:
        if isinstance(section, type) and issubclass(section, BaseModel):
            section = section.model_fields[parent].annotation
        else:  # a table of sections by name
            section = get_args(section)[1]
    fields: Mapping[str, FieldInfo] = section.model_fields
    return fields


def _explain(key: str, text: str, layers: list[tuple[str, dict[str, Any]]]) -> str:
    """One line: key, problem, and the source of the value."""
    for source, layer in reversed(layers):
        if _holds(layer, key):
            return f"  {key}: {text} ({source})"
    return f"  {key}: {text}"


def _holds(layer: Any, key: str) -> bool:
    """Whether a layer sets a dotted key; names in pass-through tables have dots, too."""
    if not isinstance(layer, Mapping):
        return False
    return any(
        key == name or (key.startswith(f"{name}.") and _reaches(value, key[len(name) + 1 :]))
        for name, value in layer.items()
    )


def _reaches(value: Any, rest: str) -> bool:
    # An element of a list has the list's source, and a table given as text is one value.
    return _holds(value, rest) if isinstance(value, Mapping) else True
