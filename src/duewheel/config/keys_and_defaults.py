"""The sections of the configuration, each frozen, with every key, its kind and its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from duewheel.config.credentials import in_clear
from duewheel.config.values import (
    Duration,
    Durations,
    HeaderName,
    Millis,
    Names,
    Option,
    Options,
    PerSecond,
    RegistryUrl,
    Servers,
    ServerUrls,
    Share,
    Size,
    SizeOrShare,
    TargetPatterns,
    TopicName,
    TopicPattern,
    Topics,
    TopicTable,
    as_millis,
    in_millis,
    topic_tables,
)
from duewheel.schemas.header_names import LEVELS_MS
from duewheel.schemas.name_patterns import may_name_topic
from duewheel.schemas.request.topic_settings import CANCEL, DEFAULT, KEY, NATIVE, TopicContract
from duewheel.schemas.wire.codec_names import Codec
from duewheel.wheel.slots import TimelineKind

Port = Annotated[int, Field(ge=0, le=65535)]  # 0: a free one

# Spark needs 450 MiB, and the collector leaves nine tenths of a heap: with less the JVM ends at
# each start.
HEAP_MIN_BYTES = 512 << 20
# Setting or firing a schedule costs dequeue up to 0.5 ms, depending on its expression: so one timer
# topic takes half of it at most.
RECURRING_QUOTA = 1_000


def heap_bytes(text: str) -> int:
    """The size of a heap, written as the JVM reads it."""
    return int(text[:-1]) << {"m": 20, "g": 30}[text[-1].lower()]


def _large_enough(text: str) -> str:
    if heap_bytes(text) < HEAP_MIN_BYTES:
        raise ValueError(f'"{text}" is too small for Spark: at least {HEAP_MIN_BYTES >> 20}m')
    return text


DriverMemory = Annotated[str, Field(pattern=r"^\d+[mMgG]$"), AfterValidator(_large_enough)]

SparkMaster = Annotated[str, Field(pattern=r"^(local(\[[\d*, ]+\])?|(spark|k8s)://\S+)$")]

LEVELS = tuple(timedelta(milliseconds=level_ms) for level_ms in LEVELS_MS)


def _in_lower_case(kind: Any, value: Any) -> Any:
    """A value of an enumeration, or a table of such values, in lower case; others as they are."""
    if get_origin(kind) is Literal and isinstance(value, str):
        return value.lower()
    if get_origin(kind) is dict and isinstance(value, Mapping):
        return {name: _in_lower_case(get_args(kind)[1], each) for name, each in value.items()}
    return value


class Section(BaseModel):
    """A table of the configuration: frozen, without unknown keys.

    The text below a key is its description in docs/configuration.md (scripts/reference.py).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _ignore_case(cls, values: Any) -> Any:
        """Accepts the words of enumerations in any case: `--set log.level=INFO`."""
        if not isinstance(values, Mapping):
            return values
        kinds = {name: field.annotation for name, field in cls.model_fields.items()}
        return {key: _in_lower_case(kinds.get(key), value) for key, value in values.items()}


class AppSection(Section):
    """[app]: the name that all shards of this application share."""

    id: TopicName = "duewheel"
    """The prefix of duewheel's topics and transactional ids; the same for all shards."""


class KafkaSection(Section):
    """[kafka]: one cluster holds timer topics and targets."""

    bootstrap_servers: Servers = ("localhost:9092",)
    """`host:port` of brokers."""
    client: Options = Field(default_factory=dict)
    """A table of options for kafka-python's producer, consumer and admin client, under its names
    (`request_timeout_ms`);
    `sasl_plain_password_file` and `ssl_password_file` name files with the secret."""

    @property
    def servers(self) -> str:
        """host:port, comma separated."""
        return ",".join(self.bootstrap_servers)

    def client_options(self, kind: Literal["producer", "consumer", "admin"]) -> dict[str, Any]:
        """Returns the options of a kafka-python client of this kind, with servers, in clear.

        Raises:
            ConfigError: a file that they name cannot be read.
        """
        known = client_defaults()[kind]
        options = {name: value for name, value in in_clear(self.client).items() if name in known}
        typed = {name: _typed(value, known[name]) for name, value in options.items()}
        return {"bootstrap_servers": list(self.bootstrap_servers)} | typed


class TimerTopic(Section):
    """[timer.topic."<name>"]: defaults of one timer topic; see schemas/request/topic_settings.py.

    The header modes of other services use keys as ids, and cancel by null values. A field's example
    is another valid value than its default: tests derive theirs from it.
    """

    headers: Literal["native", "etf1", "karafka", "eifinger"] = "native"
    """Which request headers are read: duewheel's alone, or also those of another service."""
    id: Literal["header", "key"] = "header"
    """`key`: without `UNIQ_KEY` the record's key is the id, and the next such record with that key
    replaces the timer. With other `headers` than `native` it is always `key`."""
    null_value: Literal["message", "cancel"] = "message"
    """`cancel`: a record with a null value cancels the timers whose id is its key. With other
    `headers` than `native` it is always `cancel`."""
    target: TopicName | None = Field(default=None, examples=["orders"])
    """Target of messages without `REAL_TOPIC`, as in `timer.mapping`."""
    targets: TargetPatterns | None = Field(default=None, examples=[["bills", "mails.*"]])
    """Targets that messages may name in `REAL_TOPIC`, instead of those of `timer.targets`."""
    delay: Duration | None = Field(default=None, examples=["15m"])
    """Delay of messages that request no due time."""
    max_delay: Duration | None = Field(default=None, examples=["1h"])
    """The longest delay of its messages; at most `timer.max_delay`, which holds without it."""
    quota_per_second: Annotated[int, Field(ge=1)] | None = Field(default=None, examples=[7])
    """How many of its messages a shard takes per second; further ones wait in Kafka
    (docs/flow.md). With `recurring` the default is 1,000."""
    past_due: Literal["fire", "dead-letter"] = "fire"
    """Whether a message that is due at its timestamp or before is delivered at once, or becomes a
    dead letter."""
    value_schema: Literal["none", "registry"] = "none"
    """`registry`: a value without the number of a schema in front becomes a dead letter
    (docs/messages.md)."""
    recurring: bool = False
    """Whether its messages may be recurring timers (`TIMER_CRON`, `TIMER_EVERY`). Otherwise such a
    message becomes a dead letter, `recurring_not_allowed`."""
    expires_after: Duration | None = Field(default=None, examples=["2h"])
    """A message that is late by more becomes a dead letter, `expired`, instead of a late
    delivery."""
    expired: Literal["dead-letter", "drop"] = "dead-letter"
    """Whether a message that has expired becomes a dead letter, or is dropped and only counted."""
    receipts: bool = True
    """Whether its deliveries have a receipt, if `timer.receipts_topic` names a topic."""
    lateness_header: bool = False
    """Whether its deliveries have the header `TIMER_LATENESS_MS`."""
    lateness_p99: Duration | None = Field(default=None, examples=["250ms"])
    """Objective: 99 of 100 of its deliveries are late by no more than this; metrics and alerts
    follow it (docs/receipts.md)."""
    suite: Path | None = Field(default=None, examples=["orders.json"])
    """A file with a suite of Great Expectations, which audits check on its messages."""

    @model_validator(mode="before")
    @classmethod
    def _imply(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and str(values.get("headers", NATIVE)).lower() != NATIVE:
            return {"id": KEY, "null_value": CANCEL, **values}
        return values

    @model_validator(mode="after")
    def _bound_recurring(self) -> Self:
        if self.recurring and self.quota_per_second is None:
            self.__dict__["quota_per_second"] = RECURRING_QUOTA  # it is frozen
        return self

    @property
    def contract(self) -> TopicContract:
        """Returns this table as the parser of messages needs it."""
        names = [field.name for field in fields(TopicContract)]
        values = {name: in_millis(getattr(self, name.removesuffix("_ms"))) for name in names}
        return TopicContract(**values)


class TargetTable(Section):
    """[target."<name>"]: settings of one target."""

    rate: PerSecond | None = None
    """The most timers that leave for it: the others wait in a queue, and delay no other target
    (docs/flow.md). Each shard has an equal part of it."""


class TimerSection(Section):
    """[timer]: the timer topics, and everything that decides a message's slot."""

    topics: Topics = ()
    """The timer topics; `duewheel init` creates those that are missing."""
    topics_pattern: TopicPattern | None = None
    """A regular expression for whole names: topics that match are timer topics, too."""
    precision_ms: Annotated[Millis, Field(ge=1)] = 50
    """The length of a slot: the timers of a slot are delivered together at its end."""
    timeline: TimelineKind = "wheel"
    """How timers are found when they are due (docs/performance.md); `rocksdb` needs the extra of
    that name."""
    slots: Annotated[int, Field(ge=1)] = 2_097_152
    """How many slots the wheel reaches ahead. Slots × `precision_ms` must be at least `roll_window`
    + `margin`, and below 2**30 ms (12.4 days). The default reaches 29 hours, and takes 128 MiB."""
    roll_window: Duration = timedelta(hours=24)
    """A timer that waits for longer than this is written to its timer topic again before the time
    is over (it *rolls*: docs/flow.md)."""
    margin: Duration = timedelta(hours=1)
    """How much a record's timestamp may differ from this host's clock: a recovery looks so much
    further back in the timer topics."""
    max_delay: Annotated[Duration, Field(le=timedelta(days=36_525))] = timedelta(days=40)
    """The longest delay; a message with a longer one becomes a dead letter."""
    longest_outage: Duration = timedelta(days=7)
    """The longest outage: the retention of timer topics must cover it as well."""
    dead_letter_topic: TopicName | None = None
    """By default `<app.id>.dead-letter`."""
    state_topic: TopicName | None = None
    """The topic of the progress; by default `<app.id>.state`."""
    reply_topic: TopicName | None = None
    """The topic of the replies to cancels, reschedules and `TIMER_IF_PENDING`; without it there are
    none."""
    receipts_topic: TopicName | None = None
    """The topic of the receipts: a record for each delivered timer, in the transaction that
    delivers it; without it there are none."""
    levels: Durations = LEVELS
    """The delay of level 1, 2, … of the header `DELAY`."""
    mapping: TopicTable[TopicName] = Field(default_factory=dict)
    """Timer topic to target, for messages without `REAL_TOPIC`."""
    targets: TargetPatterns = ()
    """Targets that messages may name in `REAL_TOPIC`, beside the target of their timer topic:
    names, or patterns with `*`, `?`, `[a-c]`, `[!a-c]`; `*` opens all. A message with another
    target becomes a dead letter."""
    topic: Annotated[dict[TopicName, TimerTopic], BeforeValidator(topic_tables)] = Field(
        default_factory=dict
    )
    """A table for each timer topic with settings of its own: below."""

    @property
    def levels_ms(self) -> tuple[int, ...]:
        """Delay of level 1, 2, …"""
        return tuple(as_millis(level) for level in self.levels)

    @property
    def default_contract(self) -> TopicContract:
        """Returns the contract of the timer topics without settings of their own."""
        return replace(DEFAULT, targets=self.targets)

    @property
    def contracts(self) -> dict[str, TopicContract]:
        """Returns the contract of each timer topic with settings of its own."""
        contracts = {name: table.contract for name, table in self.topic.items()}
        for name, target in self.mapping.items():
            contracts[name] = replace(contracts.get(name, DEFAULT), target=target)
        complete = {
            name: replace(each, targets=self.targets) if each.targets is None else each
            for name, each in contracts.items()
        }
        return {name: each for name, each in complete.items() if each != self.default_contract}

    @property
    def open_targets(self) -> dict[str, list[str]]:
        """Returns the names and patterns of the targets that each timer topic is open for; under
        `*` those of the topics that match the pattern.
        """
        contracts, default = self.contracts, self.default_contract
        names = [*self.topics, *contracts, *(["*"] if self.topics_pattern else [])]
        return {name: contracts.get(name, default).open_targets for name in dict.fromkeys(names)}

    @property
    def named_targets(self) -> list[str]:
        """Returns the targets that are named in full, in the place of a pattern."""
        opened = {target for targets in self.open_targets.values() for target in targets}
        return sorted(filter(may_name_topic, opened))


class IngestSection(Section):
    """[ingest]: how the streaming query reads, and how often it lists the timer topics."""

    trigger_ms: Annotated[Millis, Field(ge=0)] = 100
    """A batch starts at a multiple of this, or when the last one has ended, if that is later."""
    max_offsets_per_trigger: Annotated[int, Field(ge=1)] = 300_000
    """The most messages that ingest reads at once. In a backlog two such batches are in memory."""
    max_bytes_per_trigger: Annotated[Size, Field(ge=1)] = 64 << 20
    """The most bytes that ingest reads at once, decompressed. Each timer topic has an equal part;
    one record batch of Kafka may exceed that."""
    driver_memory: DriverMemory = "512m"
    """The heap of Spark's driver, 512m or more. On a cluster without `shared_folder` the timers of
    two batches pass through it."""
    spark_master: SparkMaster = "local[*]"
    """Where Spark's tasks run: `local[n]`, in n processes on this host (`*`: one per processor);
    `spark://host:port` or `k8s://https://host:port`, on a cluster. The driver itself runs on this
    host."""
    niceness: Annotated[int, Field(ge=0, le=19)] = 5
    """Added to the niceness of ingest and of Spark once ingest is ready: where processors are
    scarce, delivery goes first."""
    shared_folder: Path | None = None
    """With a cluster: a folder through which executors hand timers over, in place of the driver's
    JVM (docs/spark-cluster.md)."""
    topics_interval: Annotated[Duration, Field(ge=timedelta(milliseconds=100))] = timedelta(
        seconds=10
    )
    """The interval between lists of the timer topics in Kafka."""

    @property
    def driver_memory_bytes(self) -> int:
        """The heap of Spark's driver."""
        return heap_bytes(self.driver_memory)


class DequeueSection(Section):
    """[dequeue]: the size of a transaction, time-outs of Kafka, read-ahead and hot slots."""

    chunk_records: Annotated[int, Field(ge=1)] = 20_000
    """The most messages that one Kafka transaction delivers."""
    chunk_bytes: Annotated[Size, Field(ge=1)] = 6 << 20
    """The most bytes that one Kafka transaction delivers; a larger message has one of its own."""
    transaction_timeout_ms: Annotated[Millis, Field(ge=1_000)] = 20_000
    """The time after which a broker aborts the open transaction of a dead owner."""
    call_deadline: Duration = timedelta(seconds=15)
    """The deadline of a transaction; shorter than `transaction_timeout_ms`."""
    clock_skew_max: Annotated[Duration, Field(ge=timedelta(milliseconds=50))] = timedelta(seconds=1)
    """While this host's clock is ahead of the brokers' by more than this, no slot is closed. If a
    broker takes longer than this to answer, raise the bound."""
    read_ahead: Duration = timedelta(minutes=5)
    """Files of slots that close within this time are read into the page cache; `0s`: none."""
    read_ahead_bytes: Annotated[Size, Field(ge=0)] = 1 << 30
    """The most page cache that read-ahead fills; the kernel reclaims it when necessary."""
    hot_slot: Literal["none", "spread", "dead-letter"] = "none"
    """The fate of timers above `hot_slot_limit`: they leave with the slot, are spread over
    `hot_slot_window`, or become dead letters (docs/flow.md)."""
    hot_slot_limit: Annotated[int, Field(ge=1)] = 10_000
    """The timers of a timer topic in a slot above which a part is held back."""
    hot_slot_window: Duration = timedelta(minutes=1)
    """The time over which the excess is spread; at most `timer.roll_window` less a slot."""
    compression: Codec = "none"
    """The compression of all batches to topics without [one of their
    own](kafka.md#settings-of-targets).
    """
    compression_by_topic: TopicTable[Codec] = Field(default_factory=dict)
    """Topic to its codec, where that is another one."""


class RelaySection(Section):
    """[relay]: the database of `duewheel relay postgres`."""

    database: SecretStr = SecretStr("")
    """A connection string or URL of libpq. By default its variables count, such as `PGHOST`,
    `PGSERVICE` and `PGPASSFILE`."""


class RegistrySection(Section):
    """[registry]: a schema registry with Confluent's API, by whose schemas values are shown."""

    url: RegistryUrl | None = None
    """The address, such as `https://registry:8081`, with the API's path; without it no value is
    decoded (docs/messages.md). Needs the extra `registry`."""
    user: str | None = None
    """The name for basic authentication."""
    password_file: Path | None = None
    """The file with its password."""
    token_file: Path | None = None
    """The file with a bearer token instead."""
    ca_file: Path | None = None
    """Its certificate authorities, PEM; by default the host's."""


class StorageSection(Section):
    """[storage]: the shard's files, on a local file system."""

    data_dir: Path = Path("duewheel-data")
    """The directory of one shard on one host, used by nothing else."""
    durable_interval: Duration = timedelta(seconds=5)
    """How often the files are written to the disk for good. After a loss of power, timers that came
    later are read from Kafka again."""
    min_free: SizeOrShare = Share(256 << 20)
    """Outside a recovery ingest takes no message that would leave less than this of the file system
    free; also a share (`5%`)."""
    audit_dir: Path | None = None
    """The folder of the audits; by default `audit` in `data_dir`."""


class ShardSection(Section):
    """[shard]: the partitions of the timer topics that belong to this instance."""

    index: Annotated[int, Field(ge=0)] = 0
    """The number of this shard, from 0 on: it has the partitions p with p mod `count` = `index`."""
    count: Annotated[int, Field(ge=1)] = 1
    """The number of shards; `duewheel reshard` changes it."""
    take_over_after: Duration = timedelta(seconds=10)
    """A standby, an empty data directory, or a copy of the owner's takes over from an owner that
    has written nothing for this long by the brokers' clock. A live owner writes its progress every
    2 s."""


class AuditSection(Section):
    """[audit]: the size of an audit, its thresholds, and how many remain."""

    interval: Annotated[Duration, Field(ge=timedelta(seconds=10))] | None = None
    """`run` starts an audit this often, of the records since the last one."""
    keep: Annotated[int, Field(ge=1)] = 48
    """The number of audits that remain; older ones are removed."""
    context: Path | None = None
    """The folder whose `gx` is your project of Great Expectations, for results and Data Docs of
    audits; by default duewheel makes one in `storage.audit_dir`."""
    rows_max: Annotated[int, Field(ge=1_000)] = 1_000_000
    """The most messages of an audit; of a longer range it reads parts, spread evenly, and of each
    timer topic equally many."""
    rows_min: Annotated[int, Field(ge=0)] = 0
    """Fewer messages are a finding."""
    rejected_max: Annotated[float, Field(ge=0, le=1)] = 0.05
    """A larger share of rejected messages of a timer topic, of 1, is a finding."""


class MetricsSection(Section):
    """[metrics]: Prometheus endpoints, one per process that has a port; `serve` has its own."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    ingest_port: Port | None = None
    """The ingest process's port; 0: a free one, which the log names."""
    dequeue_port: Port | None = None
    """The dequeue process's port; likewise."""
    relay_port: Port | None = None
    """The port of `duewheel relay`; likewise."""


class ServeSection(Section):
    """[serve]: the HTTP API of `duewheel serve`."""

    host: str = "127.0.0.1"
    """The address to listen on. Beyond loopback, reads need `read_token_file` or `open_reads`."""
    port: Port = 8466
    """The port; 0: a free one, which the log names."""
    token_file: Path | None = None
    """The file with the token of requests that change anything, or in each line a name, a token,
    and perhaps its timer topics; without it they are refused."""
    read_token_file: Path | None = None
    """Likewise for requests that read, which may have a token of changes, too. Without it they need
    none."""
    open_reads: bool = False
    """Reads from other hosts need no `read_token_file`: a proxy or a network policy decides who may
    read."""
    user_headers: TopicTable[HeaderName] = Field(default_factory=dict)
    """Name of a proxy's token to the header with the person, such as `X-Forwarded-User`
    (docs/http.md)."""
    changes_topic: TopicName | None = None
    """The topic of the records of changes (docs/http.md)."""
    show_bodies: bool = False
    """Whether a timer or a dead letter is shown with the value and the headers of its message."""
    hosts: Names = ()
    """Names in the header `Host`, beside those in `shards`; by default the loopback names if `host`
    is one, else any."""
    shards: ServerUrls = ()
    """The addresses of `duewheel serve` of all shards, such as `https://timers-0:8466`: the page
    shows them side by side. Each gets the token of the request that asks."""
    body_max: Annotated[Size, Field(ge=1024)] = 1 << 20
    """The most bytes of a request's body."""
    tls_cert_file: Path | None = None
    """The certificate chain, PEM; with `tls_key_file` the API is served over TLS."""
    tls_key_file: Path | None = None
    """The private key, PEM."""

    @property
    def is_loopback(self) -> bool:
        """Whether no other host can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class TracesSection(Section):
    """[traces]: spans of deliveries for OpenTelemetry."""

    enabled: bool = False
    """Whether dequeue exports a span for each delivery whose producer has sampled its trace
    (docs/receipts.md). Needs the extra `otel`."""
    parent: Literal["producer", "delivery"] = "producer"
    """The span that a consumer's trace continues from: `producer`: `traceparent` is delivered
    unchanged; `delivery`: it has the delivery's span."""


class LogSection(Section):
    """[log]: the processes' log lines on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level of duewheel's own lines; libraries log from `warning` on."""
    format: Literal["auto", "json", "text"] = "auto"
    """`auto`: text on a terminal, JSON elsewhere."""


# ---- pass-through options -----------------------------------------------------------------------


def client_defaults() -> dict[str, dict[str, Any]]:
    """Returns kafka-python's options and their defaults, by kind of client."""
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    return {
        "producer": KafkaProducer.DEFAULT_CONFIG,
        "consumer": KafkaConsumer.DEFAULT_CONFIG,
        "admin": KafkaAdminClient.DEFAULT_CONFIG,
    }


def _typed(value: Option, default: object) -> Option:
    """Converts text from the environment to the type of kafka-python's default."""
    if not isinstance(value, str):
        return value
    if isinstance(default, bool) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if isinstance(default, int) and not isinstance(default, bool) and value.isdecimal():
        return int(value)
    return value


def as_text(value: Option) -> str:
    """Formats an option as the JVM writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
