"""The sections of the configuration, each frozen, with every key, its kind and its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from duewheel.config_values import (
    Duration,
    Durations,
    Millis,
    Option,
    Options,
    Servers,
    Share,
    Size,
    SizeOrShare,
    TargetPatterns,
    TopicName,
    TopicPattern,
    Topics,
    TopicTable,
    as_millis,
    reveal,
    topic_tables,
)
from duewheel.schemas.header_names import LEVELS_MS
from duewheel.schemas.topic_contracts import CANCEL, DEFAULT, KEY, NATIVE, TopicContract
from duewheel.wheel.hot_slots import Policy

Port = Annotated[int, Field(ge=0, le=65535)]  # 0: a free one

DriverMemory = Annotated[str, Field(pattern=r"^\d+[mMgG]$")]

# A row is in the driver's heap several times, as it is fetched, collected and handed over, and then
# again in the ingest process.
HEAP_SHARE = 8

LEVELS = tuple(timedelta(milliseconds=level_ms) for level_ms in LEVELS_MS)


class Section(BaseModel):
    """A table of the configuration: frozen, and with no other keys than its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class App(Section):
    """[app]: the name that all of this application's shards share."""

    id: TopicName = "duewheel"


class Kafka(Section):
    """[kafka]: one cluster holds timer topics and targets.

    `client` goes to kafka-python's clients under its own names (request_timeout_ms), `spark` to the
    Spark source's consumers under Kafka's (security.protocol).
    """

    bootstrap_servers: Servers = ("localhost:9092",)
    client: Options = Field(default_factory=dict)
    spark: Options = Field(default_factory=dict)

    @property
    def servers(self) -> str:
        """host:port, comma separated."""
        return ",".join(self.bootstrap_servers)

    def client_options(self, kind: Literal["producer", "consumer", "admin"]) -> dict[str, Any]:
        """What a kafka-python client of this kind is to be given, servers included, in clear."""
        known = client_defaults()[kind]
        options = {name: reveal(value) for name, value in self.client.items() if name in known}
        typed = {name: _typed(value, known[name]) for name, value in options.items()}
        return {"bootstrap_servers": list(self.bootstrap_servers)} | typed

    def source_options(self) -> dict[str, str]:
        """Kafka options of the Spark source, in clear, without their prefix `kafka.`."""
        return {name: as_text(reveal(value)) for name, value in self.spark.items()}


class TimerTopic(Section):
    """[timer.topic."<name>"]: defaults of one timer topic; see schemas/topic_contracts.py.

    The header modes of other services know no ids but keys, and cancel by null values.
    """

    headers: Literal["native", "etf1", "karafka", "eifinger"] = "native"
    id: Literal["header", "key"] = "header"
    null_value: Literal["message", "cancel"] = "message"
    target: TopicName | None = None
    delay: Duration | None = None
    past_due: Literal["fire", "dead-letter"] = "fire"

    @model_validator(mode="before")
    @classmethod
    def _imply(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("headers", NATIVE) != NATIVE:
            return {"id": KEY, "null_value": CANCEL, **values}
        return values

    @property
    def contract(self) -> TopicContract:
        """The same for those who judge messages."""
        return TopicContract(
            headers=self.headers,
            id=self.id,
            null_value=self.null_value,
            target=self.target,
            delay_ms=None if self.delay is None else as_millis(self.delay),
            past_due=self.past_due,
        )


class Timer(Section):
    """[timer]: the timer topics, and everything that decides a message's slot.

    `max_delay` guards against milliseconds given as seconds, which its default finds from an hour
    on, and bounds what a timer may cost: a day of waiting beyond `roll_window` is another record in
    its timer topic. A century at the default window is as far as TIMER_ROLL_TIMES counts.
    """

    topics: Topics = ()
    topics_pattern: TopicPattern | None = None
    precision_ms: Annotated[Millis, Field(ge=1)] = 50
    slots: Annotated[int, Field(ge=1)] = 2_097_152
    roll_window: Duration = timedelta(hours=24)
    margin: Duration = timedelta(hours=1)
    max_delay: Annotated[Duration, Field(le=timedelta(days=36_525))] = timedelta(days=40)
    longest_outage: Duration = timedelta(days=7)
    dead_letter_topic: TopicName | None = None
    state_topic: TopicName | None = None
    reply_topic: TopicName | None = None
    levels: Durations = LEVELS
    mapping: TopicTable = Field(default_factory=dict)
    targets_allow: TargetPatterns = ()
    targets_deny: TargetPatterns = ()
    topic: Annotated[dict[TopicName, TimerTopic], BeforeValidator(topic_tables)] = Field(
        default_factory=dict
    )

    @property
    def levels_ms(self) -> tuple[int, ...]:
        """Delay of level 1, 2, …"""
        return tuple(as_millis(level) for level in self.levels)

    @property
    def contracts(self) -> dict[str, TopicContract]:
        """What holds for the messages of each timer topic of which more is said than its name."""
        told = {name: table.contract for name, table in self.topic.items()}
        for name, target in self.mapping.items():
            told[name] = replace(told.get(name, DEFAULT), target=target)
        return {name: contract for name, contract in told.items() if contract != DEFAULT}


class Ingest(Section):
    """[ingest]: how the streaming query reads, and how often it looks for new timer topics.

    `max_bytes_per_trigger` is an eighth of `driver_memory` unless given.
    """

    trigger_ms: Annotated[Millis, Field(ge=0)] = 100
    max_offsets_per_trigger: Annotated[int, Field(ge=1)] = 50_000
    max_bytes_per_trigger: Annotated[Size, Field(ge=1)] | None = None
    driver_memory: DriverMemory = "2g"
    topics_interval: Annotated[Duration, Field(ge=timedelta(milliseconds=100))] = timedelta(
        seconds=10
    )

    @property
    def bytes_per_trigger(self) -> int:
        """The most that a batch's rows may take, by the bytes that rows have had lately."""
        return self.max_bytes_per_trigger or self.driver_memory_bytes // HEAP_SHARE

    @property
    def driver_memory_bytes(self) -> int:
        """The heap of Spark's driver."""
        return int(self.driver_memory[:-1]) << {"m": 20, "g": 30}[self.driver_memory[-1].lower()]


class Dequeue(Section):
    """[dequeue]: how much one transaction holds, how long Kafka may take, what is read ahead.

    Nothing becomes due while the host's clock is ahead of the brokers' by more than
    `clock_skew_max`. Hosts with NTP are within milliseconds, and an answer of a broker takes less
    than the default; where it does not, the bound must be higher.

    `read_ahead_bytes` is page cache, which the kernel takes back when it needs it. The default
    holds an hour of 1,000 timers a second of some 180 bytes; `read_ahead = "0s"` turns it off.

    `hot_slot` says what becomes of the timers of one slot beyond `hot_slot_limit`: of those from
    the limit to its double ever more are in excess, beyond that all. They leave spread over
    `hot_slot_window`, or become dead letters.
    """

    chunk_records: Annotated[int, Field(ge=1)] = 20_000
    chunk_bytes: Annotated[Size, Field(ge=1)] = 6 << 20
    transaction_timeout_ms: Annotated[Millis, Field(ge=1_000)] = 20_000
    call_deadline: Duration = timedelta(seconds=15)
    clock_skew_max: Annotated[Duration, Field(ge=timedelta(milliseconds=50))] = timedelta(seconds=1)
    read_ahead: Duration = timedelta(minutes=5)
    read_ahead_bytes: Annotated[Size, Field(ge=0)] = 1 << 30
    hot_slot: Policy = "none"
    hot_slot_limit: Annotated[int, Field(ge=1)] = 10_000
    hot_slot_window: Duration = timedelta(minutes=1)


class Storage(Section):
    """[storage]: where the shard's files are, on a local file system.

    Ingest takes nothing while less than `min_free` of it, bytes or percent, would be left free.
    """

    data_dir: Path = Path("duewheel-data")
    durable_interval: Duration = timedelta(seconds=5)
    min_free: SizeOrShare = Share(256 << 20)
    audit_dir: Path | None = None  # `audit` in data_dir


class Shard(Section):
    """[shard]: which partitions of the timer topics are this instance's: every `count`-th of each.

    A standby, or an empty data directory, takes the shard over from an owner that has been silent
    for `take_over_after`, by the broker's clock. An owner that lives writes its progress every 2 s.
    """

    index: Annotated[int, Field(ge=0)] = 0
    count: Annotated[int, Field(ge=1)] = 1
    take_over_after: Duration = timedelta(seconds=10)


class Audit(Section):
    """[audit]: how much an audit reads, what it accepts of a range, how many are kept.

    With an `interval`, `run` starts one every so often. `rejected_max` is a share, from 0 to 1;
    `rows_min` and `rejected_max` are for the whole range.
    """

    interval: Annotated[Duration, Field(ge=timedelta(seconds=10))] | None = None
    keep: Annotated[int, Field(ge=1)] = 48
    rows_max: Annotated[int, Field(ge=1_000)] = 1_000_000
    rows_min: Annotated[int, Field(ge=0)] = 0
    rejected_max: Annotated[float, Field(ge=0, le=1)] = 0.05
    driver_memory: DriverMemory = "1g"


class Metrics(Section):
    """[metrics]: Prometheus endpoints, one per process; without a port there is none."""

    host: str = "127.0.0.1"
    ingest_port: Port | None = None
    dequeue_port: Port | None = None


class Log(Section):
    """[log]: "auto" is text on a terminal and JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"


# ---- options that are passed through ------------------------------------------------------------


def client_defaults() -> dict[str, dict[str, Any]]:
    """kafka-python's options and their defaults, by kind of client."""
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    return {
        "producer": KafkaProducer.DEFAULT_CONFIG,
        "consumer": KafkaConsumer.DEFAULT_CONFIG,
        "admin": KafkaAdminClient.DEFAULT_CONFIG,
    }


def _typed(value: Option, default: object) -> Option:
    """Text from the environment as what kafka-python expects, judged by the default's type."""
    if not isinstance(value, str):
        return value
    if isinstance(default, bool) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if isinstance(default, int) and not isinstance(default, bool) and value.isdecimal():
        return int(value)
    return value


def as_text(value: Option) -> str:
    """As the JVM side writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
