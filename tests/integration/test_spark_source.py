"""`format("duewheel")` in an application's own Spark session: timers are written to a real broker,
and the lists of a shard are read as tables.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType
from tests.harness.config_file import QUICK_JVM, write_config
from tests.harness.launcher import wait_until
from tests.harness.reader import read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard

from duewheel.adapters.spark import DuewheelSource
from duewheel.client import DelayProducer
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.errors import ConfigError
from duewheel.java.find import Java
from duewheel.tables import dead_letters_table, pending_table, receipts_table, schedules_table

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
COUNT = 300
RECEIPTS = "sparkled.receipts"
HOUR_MS = 3_600_000
CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": f"{QUICK_JVM} -Xss8m",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "Asia/Kolkata",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.authenticate.socketTimeout": "300s",
}


@pytest.fixture(scope="module")
def spark(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """As an application starts it, in a zone of its own."""
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java.home))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONSAFEPATH", "1")
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        patch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
        builder = SparkSession.builder.master("local[2]")
        for name, value in {**CONF, "spark.sql.warehouse.dir": str(folder)}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="module")
def config(broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shard")
    topic = {"sparkled.timers": {"recurring": True}}
    timer = {"receipts_topic": RECEIPTS, "topic": topic}
    return write_config(folder, broker.bootstrap_servers, "sparkled", timer=timer)


@pytest.fixture(scope="module")
def shard(config: Path) -> Iterator[SparklessShard]:
    with closing(SparklessShard(load(config), 1)) as shard:
        yield shard


Writes = Callable[..., Any]


@pytest.fixture
def write(shard: SparklessShard) -> Writes:
    """Writes rows into the timer topic, with further options."""

    def save(rows: DataFrame, **options: str) -> None:
        writer = rows.write.format("duewheel").mode("append")
        writer = writer.option("kafka.bootstrap.servers", shard.servers)
        writer.option("topic", shard.timers).options(**options).save()

    return save


def records(shard: SparklessShard) -> dict[tuple[int, int], Any]:
    """All of the timer topic, by their places."""
    read = read_topic(shard.servers, shard.timers)
    return {(record.partition, record.offset): record for record in read}


def written_since(before: dict[tuple[int, int], Any], shard: SparklessShard) -> list[Any]:
    """The later records, by value."""
    later = [each for place, each in records(shard).items() if place not in before]
    return sorted(later, key=lambda record: record.value)


def rows_read(rows: DataFrame) -> int:
    """How many rows the data source has given to Spark for these."""
    rows.collect()
    scan = rows._jdf.queryExecution().executedPlan().collectLeaves().head()  # noqa: SLF001
    read: int = scan.metrics().get("numOutputRows").get().value()
    return read


def test_rows_become_timers(
    spark: SparkSession, shard: SparklessShard, config: Path, write: Writes
) -> None:
    first_ms = SystemClock().now_ms() + HOUR_MS
    rows = spark.range(0, COUNT, 1, 3).selectExpr(
        f"if(id % 3 = 0, '{shard.target}', 'sparkled.other') as target",
        # Half a millisecond beyond a whole one: no timer may be early.
        f"if(id % 2 = 0, timestamp_micros(({first_ms} + id) * 1000 - 500), null) as due",
        "if(id % 2 = 1, make_dt_interval(0, 2, 0, 0.001 * id), null) as delay",
        "concat('key ', id) as key",
        "cast(concat('value ', id) as binary) as value",
        "concat('id ', id) as id",
        "map('trace', concat('t ', id), 'ü', 'ü') as headers",
        "if(id % 5 = 0, 'vip', null) as tag",
        "'keep' as if_pending",
    )
    write(rows)
    written = {record.key.decode(): record for record in records(shard).values()}
    assert len(written) == COUNT
    own = [("trace", b"t 5"), ("ü", "ü".encode()), ("TIMER_TAG", b"vip")]
    assert written["key 5"].value == b"value 5"
    assert written["key 5"].headers == [
        *own,
        ("TIMER_DELAY_MS", b"7200005"),
        ("UNIQ_KEY", b"id 5"),
        ("TIMER_IF_PENDING", b"keep"),
        ("REAL_TOPIC", b"sparkled.other"),
    ]
    shard.take()
    pending = {row["id"]: row for row in pending_table(config).to_pylist()}
    assert pending.keys() == {f"id {n}" for n in range(COUNT)}
    for number in range(COUNT):
        row = pending[f"id {number}"]
        due_ms = first_ms + number
        if number % 2:
            due_ms = written[f"key {number}"].timestamp + 2 * HOUR_MS + number
        assert row["due"] == datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=due_ms)
        assert row["topic"] == ("sparkled.other" if number % 3 else shard.target)
    write(rows)  # as a repeated task
    shard.take()
    assert len(pending_table(config)) == COUNT


def test_epoch_milliseconds_and_text_are_due_times(
    spark: SparkSession, shard: SparklessShard, write: Writes
) -> None:
    before = records(shard)
    expires_ms = SystemClock().now_ms() + 2 * HOUR_MS
    write(
        spark.sql(
            f"select '{shard.target}' target, 1800000000000 due, null delay, 'a' value, "
            f"cast(null as bigint) expires_at, cast(null as string) `window`, 1 `partition` "
            f"union all select '{shard.target}', null, '1h30m', 'b', {expires_ms}, '10m', 0"
        ).selectExpr("*", "cast(null as map<string, binary>) headers"),
        max_delay="9000d",
    )
    a, b = written_since(before, shard)
    target = ("REAL_TOPIC", shard.target.encode())
    assert a.headers == [("TIMER_DELIVER_MS", b"1800000000000"), target, ("REAL_QID", b"1")]
    assert (a.partition, b.partition) == (1, 0)
    assert b.headers[:3] == [
        ("TIMER_EXPIRES_MS", b"%d" % expires_ms),
        ("TIMER_DELAY_MS", b"5400000"),
        ("TIMER_WINDOW_MS", b"600000"),
    ]


GOOD = "'orders' target, '15m' delay, 'v' value"


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        (GOOD, {"topics": "x"}, "no option 'topics'; did you mean \"topic\""),
        (GOOD, {"kafka.aks": "1"}, "no option of kafka-python's producer 'aks'"),
        (GOOD, {"kafka.bootstrap.servers": "host"}, "kafka.bootstrap_servers"),
        (GOOD, {"kafka.security.protocol": "SSSL"}, "kafka.security_protocol: "),
        (GOOD, {"bad_rows": "drop"}, "bad_rows='drop' is neither fail nor dead-letter"),
        (GOOD, {"max_delay": "9000"}, "max_delay: "),
        (f"{GOOD}, 1 tagg", {}, "no column 'tagg'; did you mean \"tag\""),
        ("15 target, '15m' delay, 'v' value", {}, "the column target is a string, once; not int"),
        ("'orders' target, 15 delay, 'v' value", {}, "the column delay is a string such as 15m"),
        (
            "'orders' target, timestamp_ntz'2027-01-01' due, 'v' value",
            {},
            "the column due is a timestamp, or .*; not timestamp_ntz",
        ),
        (f"{GOOD}, map('a', 1) headers", {}, "the column headers is a map .*; not map<string,int>"),
        ("'orders' target, 'v' value", {}, "the column due or delay is missing"),
        ("'15m' delay, 'v' value", {}, "the column target is missing"),
    ],
)
def test_a_wrong_option_or_column_is_refused_before_a_record_is_written(
    spark: SparkSession,
    shard: SparklessShard,
    write: Writes,
    columns: str,
    options: dict[str, str],
    reason: str,
) -> None:
    before = records(shard)
    with pytest.raises(AnalysisException, match=reason):
        write(spark.sql(f"select {columns}"), **options)
    assert written_since(before, shard) == []


BAD = {
    "nowhere": (None, "1m", "v", "the target is null"),
    "unit": ("orders", "15", "v", "delay: .*15"),
    "far": ("orders", "41d", "v", r"due in 41d, the longest delay \(timer.max_delay\) is 40d"),
    "when": ("orders", None, "v", "give exactly one of due and delay"),
    "": ("orders", "1m", "v", "the id has 0 bytes"),
    "name": ("no topic!", "1m", "v", "the target 'no topic!' is no topic name"),
}


def bad_rows(spark: SparkSession, *ids: str) -> DataFrame:
    rows = [(*BAD[each][:3], each, {"TIMER_DEL_UNIQKEY": "x", "own": "1"}) for each in ids]
    kinds = "target string, delay string, value string, id string, headers map<string, string>"
    return spark.createDataFrame(rows, kinds)


def test_a_bad_row_fails_the_write_and_is_named(spark: SparkSession, write: Writes) -> None:
    rows = spark.sql(f"select {GOOD} union all select 'orders', '15', 'w'").coalesce(1)
    with pytest.raises(PySparkException, match=r"a row makes no timer: delay: .*target='orders'"):
        write(rows)


def test_a_bad_row_becomes_a_dead_letter_on_request(
    spark: SparkSession, shard: SparklessShard, config: Path, write: Writes
) -> None:
    write(bad_rows(spark, *BAD), bad_rows="dead-letter")
    shard.pump()
    letters = [letter for letter in shard.letters() if ("own", b"1") in letter.headers]
    assert len(letters) == len(BAD)
    reasons = []
    for letter in letters:
        headers = dict(letter.headers)
        assert headers["TIMER_ERROR_CODE"] == b"bad_header"
        reason, name = headers["TIMER_DELIVER_MS"].decode(), headers["UNIQ_KEY"].decode()
        assert reason.startswith("a row makes no timer: "), name
        reasons.append(reason)
        assert "TIMER_DEL_UNIQKEY" not in headers
    read = table(spark, config, "dead-letters", code="bad_header")
    rows = dead_letters_table(config, code="bad_header").to_pylist()
    assert rows_read(read) == len(rows) >= len(BAD)
    assert {row.written.astimezone(UTC) for row in read.collect()} == {
        row["written"] for row in rows
    }
    errors = "\n".join(row["error"] for row in rows)
    assert all(repr(reason) in errors for reason in reasons)
    assert rows_read(table(spark, config, "dead-letters", code="past_due")) == 0


def test_a_stream_is_written(spark: SparkSession, shard: SparklessShard, tmp_path: Path) -> None:
    before = records(shard)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    spark.range(50).write.mode("overwrite").json(str(inbox))
    stream = spark.readStream.schema("id bigint").json(str(inbox))
    rows = stream.selectExpr(f"'{shard.target}' target", "'1h' delay", "string(id) value")
    query = (
        rows.writeStream.format("duewheel")
        .option("kafka.bootstrap.servers", shard.servers)
        .option("topic", shard.timers)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    counted = stream.groupBy("id").count().selectExpr("'a' target", "'1h' delay", "string(id) key")
    complete = counted.writeStream.format("duewheel").outputMode("complete")
    with pytest.raises(PySparkException, match="timers can only be added"):
        complete.option(
            "checkpointLocation", str(tmp_path / "complete")
        ).start().processAllAvailable()
    values = {int(record.value) for record in written_since(before, shard)}
    assert values == set(range(50))


def table(spark: SparkSession, config: Path, name: str, **options: str) -> DataFrame:
    reader = spark.read.format("duewheel").option("table", name).option("config", str(config))
    return reader.options(**options).load()


def test_pending_timers_are_read_as_a_table(
    spark: SparkSession, shard: SparklessShard, config: Path
) -> None:
    rows = table(spark, config, "pending")
    every = pending_table(config)
    read = rows.toArrow()
    assert read.column_names == every.column_names
    assert read.cast(every.schema) == every
    other = table(spark, config, "pending", topic="sparkled.other")
    assert rows_read(other) == len(pending_table(config, topic="sparkled.other")) == 200
    # Spark's own conditions leave the table as it is for other queries.
    one = rows.where("id = 'id 7'")
    assert (one.count(), rows_read(one), rows.count()) == (1, len(every), len(every))
    assert one.union(rows.where("id <> 'id 7'")).count() == len(every)
    middle = every["leaves"][len(every) // 2].as_py()
    early = table(spark, config, "pending", until=(middle - timedelta(seconds=1)).isoformat())
    late = table(spark, config, "pending", since=middle.isoformat())
    assert 0 < rows_read(early) < len(every) and 0 < rows_read(late) < len(every)
    view = f"using duewheel options (table 'pending', config '{config}', id 'id 8')"
    spark.sql(f"create or replace temporary view eighth {view}")
    assert [row.key for row in spark.sql("select key from eighth").collect()] == ["key 8"]


def test_receipts_are_read_as_a_table(
    spark: SparkSession, shard: SparklessShard, config: Path, write: Writes
) -> None:
    now = f"select '{shard.target}' target, '0s' delay, string(id) value, concat('now ', id) id"
    write(spark.sql(f"{now} from range(20)"))
    shard.pump()
    rows = table(spark, config, "receipts")
    assert {row.id for row in rows.collect()} >= {f"now {n}" for n in range(20)}
    assert rows_read(table(spark, config, "receipts", id="now 7")) == 1
    late = str(SystemClock().now_ms() + HOUR_MS)
    assert rows_read(table(spark, config, "receipts", since=late)) == 0


def test_receipts_are_followed_as_a_stream(
    spark: SparkSession, shard: SparklessShard, config: Path, tmp_path: Path
) -> None:
    def deliver(partition: int, *ids: str, target: str = "followed") -> None:
        place = {"source": f"{shard.timers}-0@0", "target": target, "target_partition": 0}
        value = json.dumps({**place, "due_ms": 1}, separators=(",", ":")).encode()
        shard.send(RECEIPTS, partition, *((each.encode(), value, []) for each in ids))

    def followed() -> list[tuple[str, str, datetime]]:
        kinds = "id string, receipt string, delivered timestamp"
        rows = spark.read.schema(kinds).json(str(tmp_path / "rows")).collect()
        return sorted((row.id, row.receipt, row.delivered.astimezone(UTC)) for row in rows)

    def in_table() -> list[tuple[str, str, datetime]]:
        rows = receipts_table(config, since=wanted["since"], target=wanted["target"]).to_pylist()
        return sorted((row["id"], row["receipt"], row["delivered"]) for row in rows)

    wanted = {"since": str(SystemClock().now_ms()), "target": "followed"}
    deliver(0, "a", "b")
    deliver(0, "other", target="other")
    query = follow(spark, config, tmp_path, **wanted).start()
    query.processAllAvailable()
    assert followed() == in_table()
    noted = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    assert list(json.loads(noted)) == ["0", "1", "2", "3"], "Spark compares the texts"
    with shard.admin() as admin:
        admin.have_partitions(RECEIPTS, 5)  # it had four
    deliver(4, "c")
    wait_until(lambda: len(followed()) == 3, "the new partition is read")
    query.stop()
    deliver(0, "d")
    run(follow(spark, config, tmp_path, **wanted))
    assert followed() == in_table()
    assert [each[0] for each in followed()] == ["a", "b", "c", "d"]
    deliver(0, "e", "f")
    offsets = [row.offset for row in read_topic(shard.servers, RECEIPTS) if row.partition == 0]
    *_, first, last = offsets
    with closing(KafkaAdminClient(bootstrap_servers=shard.servers)) as client:
        client.delete_records({TopicPartition(RECEIPTS, 0): last})
    task = {"table": "receipts", "config": str(config)}
    rows = DuewheelSource(task).streamReader(StructType()).read(InputPartition((0, first, last)))
    with pytest.raises(ConfigError, match=f"{RECEIPTS}-0 lacks the offsets {first} to {last - 1}:"):
        list(rows)


def test_a_stream_begins_before_the_first_receipt_that_it_wants(
    shard: SparklessShard, config: Path
) -> None:
    """Spark asks for the end of the first batch, and then for its start."""
    later_ms = SystemClock().now_ms() + 3_600_000
    task = {"table": "receipts", "config": str(config), "since": str(later_ms)}
    reader: Any = DuewheelSource(task).streamReader(StructType())
    try:
        end = as_noted(reader.latestOffset())
        shard.send(RECEIPTS, 0, (b"early", b"{}", []))
        start = as_noted(reader.initialOffset())
        assert start["0"] > end["0"]
        assert reader.partitions(start, end) == []
        with pytest.raises(ConfigError, match="the topic was deleted, or has lost records"):
            reader.partitions(as_noted({0: start["0"] + 1}), end)
    finally:
        reader.stop()


def as_noted(offsets: dict[int, int]) -> dict[str, int]:
    """As Spark's checkpoint gives them back."""
    noted: dict[str, int] = json.loads(json.dumps(offsets))
    return noted


def follow(spark: SparkSession, config: Path, folder: Path, **options: str) -> DataStreamWriter:
    """Writes the receipts of a stream, or of another table, as JSON."""
    reader = spark.readStream.format("duewheel").option("config", str(config))
    rows = reader.options(**{"table": "receipts", **options}).load()
    writer = rows.writeStream.format("json").option("path", str(folder / "rows"))
    return writer.option("checkpointLocation", str(folder / "checkpoint"))


def run(writer: DataStreamWriter) -> None:
    """Run the query to its end: it writes the rows that exist when it starts."""
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


def test_schedules_are_read_as_a_table(
    spark: SparkSession, shard: SparklessShard, config: Path
) -> None:
    with DelayProducer(shard.timers, bootstrap_servers=shard.servers) as producer:
        cron, zone = "30 8 * * *", "Europe/Berlin"
        producer.schedule(shard.target, b"v", id="daily", cron=cron, zone=zone).result()
    shard.take()
    (row,) = table(spark, config, "schedules", timer_topic=shard.timers).collect()
    (own,) = schedules_table(config).to_pylist()
    assert (row.name, row.state, row.zone) == ("daily", "active", "Europe/Berlin")
    assert row.next_due.astimezone(UTC) == own["next_due"]
    with pytest.raises(PySparkException, match=r'"other" is no timer topic'):
        table(spark, config, "schedules", timer_topic="other").collect()


def test_a_wrong_table_is_refused(spark: SparkSession, config: Path, tmp_path: Path) -> None:
    with pytest.raises(
        AnalysisException, match="one of pending, receipts, dead-letters, schedules"
    ):
        table(spark, config, "timers")
    with pytest.raises(AnalysisException, match="no option 'confg'; did you mean \"config\""):
        table(spark, config, "pending", confg="x")
    with pytest.raises(PySparkException, match="pending cannot be a stream, only receipts can"):
        run(follow(spark, config, tmp_path, table="pending"))
    with pytest.raises(AnalysisException, match="write CREATE TEMPORARY VIEW"):
        spark.sql(f"create table t using duewheel options (table 'pending', config '{config}')")
    with pytest.raises(AnalysisException, match="since: '1 o clock' is no instant"):
        table(spark, config, "pending", since="1 o clock")


def test_it_may_also_be_registered(spark: SparkSession, config: Path) -> None:
    spark.dataSource.register(DuewheelSource)
    assert table(spark, config, "pending").columns[0] == "id"


def test_the_programs_of_the_page_do_what_it_says(
    spark: SparkSession,
    shard: SparklessShard,
    config: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    write, nightly, read, _, follow, tonight = (text for language, text in fences if not language)
    names = {"spark": spark}

    real = {"localhost:9092": shard.servers, "orders.delayed": shard.timers}
    real["duewheel.toml"] = str(config)
    real |= {path: f"{tmp_path}{path}" for path in ("/receipts", "/checkpoints/receipts")}

    def run(program: str) -> None:
        for name, own in real.items():
            program = program.replace(f'"{name}"', f'"{own}"')
        exec(program, names)

    spark.sql("select 'order-42' order_id").createOrReplaceTempView("unpaid")
    spark.sql("select 'c1' id, 'Ada' name union all select 'c2', 'Grace'").createOrReplaceTempView(
        "customers"
    )
    ends = "current_timestamp() + make_interval(0, 0, 0, 0, hours)"
    for hours in (2, 3):
        later = f"values ('c1', {hours}), ('c2', 300), ('c1', 9000)"
        trials = f"select customer, 'basic' plan, {ends} ends from {later} as t(customer, hours)"
        spark.sql(trials).createOrReplaceTempView("trials")
        run(nightly)
    run(write)
    shard.take()
    rows = table(spark, config, "pending")
    live = rows.where("topic = 'trials.ended' and not cancelled")
    assert sorted(row.id for row in live.collect()) == ["trial-c1", "trial-c2"]
    assert len(rows.where("id = 'reminder-order-42'").collect()) == 1
    run(read)
    assert len(spark.table("pending").collect()) < len(rows.collect())
    capsys.readouterr()
    run(tonight)
    shown = capsys.readouterr().out
    assert "Ada" in shown and "Grace" not in shown
    run(follow)
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()
    rows = spark.read.schema("receipt string").parquet(real["/receipts"])
    assert {row.receipt for row in rows.collect()} == {
        *receipts_table(config)["receipt"].to_pylist()
    }
