"""The sections of the configuration, each frozen, with every key, its kind and its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from duewheel.config.values import (
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
from duewheel.schemas.request.topic_contracts import CANCEL, DEFAULT, KEY, NATIVE, TopicContract
from duewheel.wheel.slot_overflow import Policy

Port = Annotated[int, Field(ge=0, le=65535)]  # 0: a free one

DriverMemory = Annotated[str, Field(pattern=r"^\d+[mMgG]$")]

# A row is in the driver's heap several times, as it is fetched, collected and handed over, and then
# again in the ingest process.
HEAP_SHARE = 8

LEVELS = tuple(timedelta(milliseconds=level_ms) for level_ms in LEVELS_MS)


class Section(BaseModel):
    """A table of the configuration: frozen, and with no other keys than its own.

    The text below a key is its description: docs/configuration.md is made of them
    (scripts/reference.py).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class AppSection(Section):
    """[app]: the name that all of this application's shards share."""

    id: TopicName = "duewheel"
    """Begins the names of duewheel's topics and transactional ids; one for all its shards."""


class KafkaSection(Section):
    """[kafka]: one cluster holds timer topics and targets."""

    bootstrap_servers: Servers = ("localhost:9092",)
    """`host:port` of brokers."""
    client: Options = Field(default_factory=dict)
    """A table of options for kafka-python's clients, under its names (`request_timeout_ms`)."""
    spark: Options = Field(default_factory=dict)
    """A table of options for Spark's consumers, under Kafka's names (`security.protocol`)."""

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
    """[timer.topic."<name>"]: defaults of one timer topic; see schemas/request/topic_contracts.py.

    The header modes of other services know no ids but keys, and cancel by null values.
    """

    headers: Literal["native", "etf1", "karafka", "eifinger"] = "native"
    """Whose request headers count: duewheel's alone, or another service's beside them."""
    id: Literal["header", "key"] = "header"
    """`key`: without `UNIQ_KEY` the record's key is the id, and the next one replaces the timer."""
    null_value: Literal["message", "cancel"] = "message"
    """`cancel`: a key without a value cancels the timers with that id."""
    target: TopicName | None = None
    """Where messages without `REAL_TOPIC` go, as in `timer.mapping`."""
    delay: Duration | None = None
    """When messages are due that do not say when."""
    past_due: Literal["fire", "dead-letter"] = "fire"
    """What becomes of a due time in the past: it leaves at once, or is a dead letter."""

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


class TimerSection(Section):
    """[timer]: the timer topics, and everything that decides a message's slot."""

    topics: Topics = ()
    """The timer topics; they must exist."""
    topics_pattern: TopicPattern | None = None
    """A regular expression for whole names: topics that match are timer topics, too."""
    precision_ms: Annotated[Millis, Field(ge=1)] = 50
    """The length of a slot."""
    slots: Annotated[int, Field(ge=1)] = 2_097_152
    """Half of the wheel's entries; `roll_window` + `margin` must fit into as many slots."""
    roll_window: Duration = timedelta(hours=24)
    """A timer due later than this after its record is written to its timer topic again."""
    margin: Duration = timedelta(hours=1)
    """How much a record's timestamp may differ from this host's clock."""
    max_delay: Annotated[Duration, Field(le=timedelta(days=36_525))] = timedelta(days=40)
    """The longest delay; what is due later is a dead letter. It finds milliseconds given as seconds
    (the default does from an hour on), and bounds what a timer costs: each further day of waiting
    is one more record. A century is as far as `TIMER_ROLL_TIMES` counts."""
    longest_outage: Duration = timedelta(days=7)
    """An outage that timer topics must outlast: their retention covers it, too."""
    dead_letter_topic: TopicName | None = None
    """By default `<app.id>.dead-letter`."""
    state_topic: TopicName | None = None
    """Where the progress is; by default `<app.id>.state`."""
    reply_topic: TopicName | None = None
    """Where cancels and reschedules are answered; without it they act in silence."""
    levels: Durations = LEVELS
    """The delay of level 1, 2, … of the header `DELAY`."""
    mapping: TopicTable = Field(default_factory=dict)
    """Timer topic to target, for messages without `REAL_TOPIC`."""
    targets_allow: TargetPatterns = ()
    """Names of targets, or patterns with `*`, `?`, `[a-c]`, `[!a-c]`; none: all are allowed."""
    targets_deny: TargetPatterns = ()
    """The same of targets that are not; counts more."""
    topic: Annotated[dict[TopicName, TimerTopic], BeforeValidator(topic_tables)] = Field(
        default_factory=dict
    )
    """A table for each timer topic of which more is to be said: below."""

    @property
    def levels_ms(self) -> tuple[int, ...]:
        """Delay of level 1, 2, …"""
        return tuple(as_millis(level) for level in self.levels)

    @property
    def contracts(self) -> dict[str, TopicContract]:
        """The contract of each timer topic that has more settings than its name."""
        contracts = {name: table.contract for name, table in self.topic.items()}
        for name, target in self.mapping.items():
            contracts[name] = replace(contracts.get(name, DEFAULT), target=target)
        return {name: contract for name, contract in contracts.items() if contract != DEFAULT}


class IngestSection(Section):
    """[ingest]: how the streaming query reads, and how often it looks for new timer topics."""

    trigger_ms: Annotated[Millis, Field(ge=0)] = 100
    """Spark begins a batch at most this often; 0: as soon as the last one has ended."""
    max_offsets_per_trigger: Annotated[int, Field(ge=1)] = 50_000
    """The most rows of a batch."""
    max_bytes_per_trigger: Annotated[Size, Field(ge=1)] | None = None
    """The most bytes of a batch; by default an eighth of `driver_memory`."""
    driver_memory: DriverMemory = "2g"
    """The heap of Spark's driver."""
    topics_interval: Annotated[Duration, Field(ge=timedelta(milliseconds=100))] = timedelta(
        seconds=10
    )
    """How often Kafka is asked which timer topics there are."""

    @property
    def bytes_per_trigger(self) -> int:
        """The most that a batch's rows may take, by the bytes that rows have had lately."""
        return self.max_bytes_per_trigger or self.driver_memory_bytes // HEAP_SHARE

    @property
    def driver_memory_bytes(self) -> int:
        """The heap of Spark's driver."""
        return int(self.driver_memory[:-1]) << {"m": 20, "g": 30}[self.driver_memory[-1].lower()]


class DequeueSection(Section):
    """[dequeue]: how much one transaction holds, how long Kafka may take, what is read ahead."""

    chunk_records: Annotated[int, Field(ge=1)] = 20_000
    """The most messages of a transaction."""
    chunk_bytes: Annotated[Size, Field(ge=1)] = 6 << 20
    """The most bytes of a transaction; a larger message goes alone."""
    transaction_timeout_ms: Annotated[Millis, Field(ge=1_000)] = 20_000
    """After this long a broker ends a transaction of an owner that is gone."""
    call_deadline: Duration = timedelta(seconds=15)
    """How long a transaction, or any other call of Kafka, may take."""
    clock_skew_max: Annotated[Duration, Field(ge=timedelta(milliseconds=50))] = timedelta(seconds=1)
    """No slot is closed while this host's clock is ahead of the brokers' by more. Hosts with NTP
    are within milliseconds; where a broker takes longer than this to answer, the bound must be
    higher."""
    read_ahead: Duration = timedelta(minutes=5)
    """Files of slots that close within this time are read into the page cache; `0s`: none."""
    read_ahead_bytes: Annotated[Size, Field(ge=0)] = 1 << 30
    """The most page cache filled so; the kernel takes it back when it needs it. The default holds
    an hour of 1,000 timers a second of some 180 bytes."""
    hot_slot: Policy = "none"
    """What becomes of a slot's timers in excess of `hot_slot_limit`: they leave all the same, are
    spread over `hot_slot_window`, or are dead letters."""
    hot_slot_limit: Annotated[int, Field(ge=1)] = 10_000
    """Up to here all leave with their slot; from here to its double ever more are in excess, beyond
    that all."""
    hot_slot_window: Duration = timedelta(minutes=1)
    """Over how long the excess is spread; at most `timer.roll_window`."""


class StorageSection(Section):
    """[storage]: where the shard's files are, on a local file system."""

    data_dir: Path = Path("duewheel-data")
    """One directory for each shard and host, used by nothing else."""
    durable_interval: Duration = timedelta(seconds=5)
    """How often files are synced: what came later is read again after a loss of power."""
    min_free: SizeOrShare = Share(256 << 20)
    """Ingest takes no row that would leave less of the file system free; also a share (`5%`)."""
    audit_dir: Path | None = None
    """Where audits are kept; by default `audit` in `data_dir`."""


class ShardSection(Section):
    """[shard]: which partitions of the timer topics are this instance's."""

    index: Annotated[int, Field(ge=0)] = 0
    """This shard, from 0 on: its partitions p have p mod `count` = `index`."""
    count: Annotated[int, Field(ge=1)] = 1
    """How many shards there are; changed by `duewheel reshard`."""
    take_over_after: Duration = timedelta(seconds=10)
    """A standby, or an empty data directory, takes over from an owner that has been silent for this
    long by the brokers' clock. An owner that lives writes its progress every 2 s."""


class AuditSection(Section):
    """[audit]: how much an audit reads, what it accepts of a range, how many are kept."""

    interval: Annotated[Duration, Field(ge=timedelta(seconds=10))] | None = None
    """`run` starts an audit this often, of what came since the last; by default none."""
    keep: Annotated[int, Field(ge=1)] = 48
    """How many audits are kept."""
    rows_max: Annotated[int, Field(ge=1_000)] = 1_000_000
    """Of a longer range, stretches spread evenly over it are read."""
    rows_min: Annotated[int, Field(ge=0)] = 0
    """Fewer messages in the range are a finding."""
    rejected_max: Annotated[float, Field(ge=0, le=1)] = 0.05
    """A larger share of rejected messages in the range, of 1, is a finding."""
    driver_memory: DriverMemory = "1g"
    """The heap of the audit's Spark driver."""


class MetricsSection(Section):
    """[metrics]: Prometheus endpoints, one per process; without a port there is none."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    ingest_port: Port | None = None
    """Of the ingest process; 0: a free one, which the log names."""
    dequeue_port: Port | None = None
    """Of the dequeue process; likewise."""


class LogSection(Section):
    """[log]: what the processes say on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""
    format: Literal["auto", "json", "text"] = "auto"
    """`auto`: text on a terminal, JSON elsewhere."""


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
