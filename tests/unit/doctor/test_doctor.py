"""How `duewheel doctor` checks replies; integration/test_doctor.py gets real ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.harness.config_file import small_settings

from duewheel import doctor, factory
from duewheel.api.examination import UNREACHABLE, DoctorFinding
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.cli.examination import as_lines, exit_code
from duewheel.clock import SystemClock
from duewheel.config.keys_and_defaults import KafkaSection
from duewheel.config.settings import load
from duewheel.dev.listeners import HOST, free_ports
from duewheel.doctor import (
    apis,
    brokers,
    clocks,
    data_directory,
    examination,
    findings,
    host,
    rights,
    shard,
    topics,
    trial,
)
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Check
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.description import Partition, Topic
from duewheel.kafka.topics.requirements import TopicFinding, TopicState
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.wheel.publisher_protocol import Seen

ADDRESS = "kafka:9092"
DOCS = Path(__file__).resolve().parents[3] / "docs"
WHOLE = {api.key: (0, api.version_max) for api in (*apis.NEEDED, *apis.OPTIONAL)}


def severities(found: Any) -> list[str]:
    return [finding.severity for finding in found]


# ---- findings -----------------------------------------------------------------------------------


def test_the_exit_code_tells_errors_and_an_absent_kafka_apart() -> None:
    ok, warning = Check("a", "s").ok("f"), Check("b", "s").warning("f", "r")
    error = Check("c", "s").error("f", "r")
    away = Check(UNREACHABLE, "s").error("f", "r")
    assert exit_code(findings.summed_up([])) == 0
    assert exit_code(findings.summed_up([ok, warning])) == 0
    assert exit_code(findings.summed_up([ok, error, warning])) == 1
    assert exit_code(findings.summed_up([error, away])) == 3


def test_the_worst_comes_first_and_its_remedy_below_it() -> None:
    found = [
        Check("fine", "host").ok("42 MiB"),
        Check("bad", "t").error("gone", "init"),
    ]
    assert list(as_lines(findings.summed_up(found))) == [
        "error  bad   t     gone",
        "       → init",
        "ok     fine  host  42 MiB",
        "errors: 1, warnings: 0, ok: 1",
    ]
    shown = findings.summed_up(found).as_json()
    assert (shown["ok"], shown["errors"], shown["warnings"]) == (False, 1, 0)
    assert [row["code"] for row in shown["findings"]] == ["bad", "fine"]


def test_a_remedy_that_findings_share_is_printed_once() -> None:
    def durability(topic: str, found: str, remedy: str) -> DoctorFinding:
        return Check("durability", topic).warning(found, remedy)

    found = [
        durability("a", "1 replica", "give each 3"),
        durability("b", "2 replicas", "set it to 2"),
        durability("c", "1 replica", "give each 3"),
        Check("durability", "d").error("no leader", "give each 3"),
    ]
    assert list(as_lines(findings.summed_up(found))) == [
        "error    durability  d  no leader",
        "         → give each 3",
        "warning  durability  a  1 replica",
        "warning  durability  c  1 replica",
        "         → give each 3",
        "warning  durability  b  2 replicas",
        "         → set it to 2",
        "errors: 1, warnings: 3, ok: 0",
    ]
    remedies = [row["remedy"] for row in findings.summed_up(found).as_json()["findings"]]
    assert all(remedies), "programs find it in each"


def test_a_remedy_is_only_for_what_needs_one() -> None:
    check = Check("c", "s")
    assert check.of("ok", "f", "r") == check.ok("f")
    assert check.ok("f").remedy == ""
    assert check.of("warning", "f", "r") == check.warning("f", "r")


@pytest.mark.parametrize(
    ("error", "reason", "cause"),
    [
        (KeyError("hunter2"), "KeyError: '***'", "an answer that no Apache Kafka"),
        (KafkaUnavailable("no answer within 30 s"), "no answer within 30 s", "log of the brokers"),
    ],
)
def test_a_part_that_fails_is_one_finding(error: Exception, reason: str, cause: str) -> None:
    def part(_: Cluster) -> Iterator[DoctorFinding]:
        yield Check("a", "s").ok("f")
        raise error

    admin = KafkaAdmin({"ssl_password": "hunter2"})
    cluster = Cluster(load(overrides={"timer": {"topics": "t"}}), admin, SystemClock())
    first, second = examination.guarded("topics", cluster, part)
    assert first.code == "a"
    assert (second.code, second.severity, second.subject) == ("not_examined", "error", "topics")
    assert second.found == reason
    assert cause in second.remedy


def test_without_a_server_the_examination_ends_with_the_reason(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = small_settings(tmp_path)
    servers = KafkaSection(bootstrap_servers=(f"{HOST}:{port}",))
    away = settings.model_copy(update={"kafka": servers})
    begun: list[str] = []
    found = list(examination.examine(away, SystemClock(), lambda part, _: begun.append(part)))
    assert begun == ["host"]
    assert (found[-1].code, found[-1].severity) == (UNREACHABLE, "error")
    assert {finding.code for finding in found[:-1]}.isdisjoint({UNREACHABLE, "not_examined"})


# ---- APIs ---------------------------------------------------------------------------------------


def test_a_whole_offer_is_one_line() -> None:
    (finding,) = apis.check_apis({"broker 1": WHOLE, "broker 2": WHOLE})
    assert (finding.severity, finding.subject) == ("ok", "broker 1, broker 2")


@pytest.mark.parametrize(
    ("offer", "said"),
    [
        (None, "not offered"),
        ((0, 3), "offered up to version 3, 4 is required"),
        ((5, 9), "offered from version 5 on, the clients support up to 4"),
    ],
)
def test_what_a_broker_lacks(offer: tuple[int, int] | None, said: str) -> None:
    init_producer_id = 22
    lacking = {key: value for key, value in WHOLE.items() if key != init_producer_id}
    if offer:
        lacking[init_producer_id] = offer
    found = list(apis.check_apis({"broker 1": WHOLE, "broker 2": lacking}))
    assert [(f.severity, f.subject) for f in found] == [("error", "broker 2")]
    assert f"InitProducerId (key 22) is {said}; dequeue would lose: fencing" in found[0].found


def test_what_is_not_needed_is_no_error() -> None:
    for api in apis.OPTIONAL:
        lacking = {key: value for key, value in WHOLE.items() if key != api.key}
        assert severities(apis.check_apis({"broker 1": lacking})) == ["ok"]


def test_the_list_is_one_of_kafka() -> None:
    """Names and versions as kafka-python's own schemas have them."""
    from kafka.protocol.api_key import ApiKey

    for api in (*apis.NEEDED, *apis.OPTIONAL):
        assert ApiKey(api.key).name == api.name
        assert api.version_min <= api.version_max
    keys = [api.key for api in (*apis.NEEDED, *apis.OPTIONAL)]
    assert len(keys) == len(set(keys))


def test_the_documentation_lists_the_same_apis() -> None:
    text = (DOCS / "kafka-apis.md").read_text()
    table = re.findall(r"^\| ([0-9, ]+) \| ([\w, ]+) \| ([0-9, ]+) \|", text, re.MULTILINE)
    documented = {
        (int(key), name, int(lowest))
        for row in table
        for key, name, lowest in zip(*(column.split(", ") for column in row), strict=True)
    }
    listed = {(api.key, api.name, api.version_min) for api in (*apis.NEEDED, *apis.OPTIONAL)}
    assert documented == listed


def test_a_shard_that_an_older_version_began_has_no_key() -> None:
    found = [shard.check_copy_key("shard 0 of 1", keys) for keys in ((), ("0" * 64,))]
    assert severities(found) == ["warning", "ok"]
    assert "reconfigure --rotate-key" in found[0].remedy


def test_a_configuration_that_does_not_fit_the_progress_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(tmp_path)
    epochs = Epochs.first(factory.slot_values(settings) | {"levels_ms": [1]})
    begun = Progress(0, 1, "owner", 1, 1, epochs, {("timers", 0): PartitionProgress(1, 1)})
    monkeypatch.setattr(shard, "all_shards", lambda _: {0: Seen(begun, 1)})
    cluster = Cluster(settings, KafkaAdmin({}), SystemClock())
    (finding,) = shard._check_progress(cluster)  # noqa: SLF001
    assert (finding.code, finding.severity) == ("progress", "error")
    assert "levels_ms: was [1]" in finding.found
    fitting = replace(begun, epochs=Epochs.first(factory.slot_values(settings)))
    monkeypatch.setattr(shard, "all_shards", lambda _: {0: Seen(fitting, 1)})
    assert severities(shard._check_progress(cluster))[0] == "ok"  # noqa: SLF001


def test_the_documentation_names_every_finding() -> None:
    sources = "".join(path.read_text() for path in Path(doctor.__path__[0]).glob("*.py"))
    codes = set(re.findall(r'Check\("(\w+)"', sources))
    named = codes | {UNREACHABLE}
    assert len(named) > 25
    text = (DOCS / "kafka.md").read_text()
    section = text.split("## What `duewheel doctor` finds")[1].split("\n## ")[0]
    documented = {
        code
        for row in re.findall(r"\| (`[^|]*) \|$", section, re.MULTILINE)
        for code in re.findall(r"`(\w+)`", row)
    }
    assert documented == named


# ---- brokers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("longest_ms", "severity"), [(20_000, "ok"), (19_999, "error")])
def test_transactions_must_be_allowed_to_last(longest_ms: int, severity: str) -> None:
    limits = TransactionLimits(transaction_timeout_ms=20_000)
    config = {"transaction.max.timeout.ms": str(longest_ms)}
    (finding,) = brokers.check_settings("broker 1", ADDRESS, "User:x", config, limits)
    assert finding.severity == severity
    assert f"is {longest_ms}; dequeue.transaction_timeout_ms is 20000" in finding.found


def test_the_largest_batch_must_fit_into_a_request() -> None:
    limits = TransactionLimits(batch_bytes_max=1_000_000)
    for most, severity in ((1_001_024, "ok"), (1_001_023, "warning")):
        config = {"socket.request.max.bytes": str(most)}
        (finding,) = brokers.check_settings("broker 1", ADDRESS, "User:x", config, limits)
        assert finding.severity == severity


def test_settings_that_may_not_be_read() -> None:
    (finding,) = brokers.check_settings("broker 1", ADDRESS, "User:x", {}, TransactionLimits())
    assert finding.severity == "warning"
    assert "--allow-principal User:x --operation DescribeConfigs --cluster" in finding.remedy


# ---- topics -------------------------------------------------------------------------------------


def partition(replicas: int, in_sync: int | None = None, leader: int = 1) -> Partition:
    return Partition(0, leader, replicas, replicas if in_sync is None else in_sync)


def topic(replicas: int = 3, in_sync_min: int = 2, **changed: Any) -> Topic:
    config = {"min.insync.replicas": str(in_sync_min), "unclean.leader.election.enable": "false"}
    return replace(Topic("t", 0, "id", (partition(replicas),), frozenset(), config), **changed)


@pytest.mark.parametrize(
    ("found", "expected", "said", "remedy"),
    [
        (topic(), ["ok"], "3 replicas, min.insync.replicas 2", ""),
        (topic(replicas=1, in_sync_min=1), ["warning"], "1 replica", "kafka-reassign-partitions"),
        (topic(in_sync_min=1), ["warning"], "acknowledged with one copy", "min.insync.replicas=2"),
        (topic(in_sync_min=3), ["warning"], "no writes with one broker", "min.insync.replicas=2"),
        (topic(partitions=(partition(3, leader=-1),)), ["error"], "[0] have no leader", "describe"),
        (topic(partitions=(partition(3, in_sync=2),)), ["warning"], "not in sync", "describe"),
        (topic(config={}), ["ok"], "3 replicas", ""),
        (
            topic(config={"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}),
            ["error"],
            "acknowledged records",
            "unclean.leader.election.enable=false",
        ),
    ],
)
def test_how_well_a_topic_is_kept(
    found: Topic, expected: list[str], said: str, remedy: str
) -> None:
    (finding,) = topics.check_durability(found, ADDRESS)
    assert [finding.severity] == expected
    assert said in finding.found
    assert remedy in finding.remedy


def test_a_target_takes_what_a_timer_topic_takes() -> None:
    small, large = (topic(config={"max.message.bytes": size}) for size in ("1000", "5000"))
    assert severities(topics.check_sizes([small], [large], ADDRESS)) == ["ok"]
    (finding,) = topics.check_sizes([small, large], [small], ADDRESS)
    assert (finding.severity, "max.message.bytes=5000" in finding.remedy) == ("warning", True)
    assert list(topics.check_sizes([topic()], [small], ADDRESS)) == []


@pytest.mark.parametrize(
    ("state", "severity"),
    [
        ("found", "ok"),
        ("missing", "error"),
        ("unreadable", "warning"),
        ("withheld", "warning"),
        ("differs", "error"),
        ("costly", "warning"),
    ],
)
def test_the_checks_of_a_start_as_findings(state: Any, severity: str) -> None:
    line = TopicFinding(
        "t", TopicState(state), "retention.ms", ">= 7", "5", "that is much", "retention.ms=7"
    )
    finding = topics.as_finding(line, ADDRESS, "User:x")
    assert finding.severity == severity
    assert bool(finding.remedy) == (severity != "ok")
    if state in {"differs", "costly"}:
        assert finding.found == "retention.ms is 5, wanted is >= 7: that is much"
        assert finding.remedy.endswith("--entity-name t --add-config retention.ms=7")
    if state == "unreadable":
        assert "--allow-principal User:x --operation DescribeConfigs" in finding.remedy


def test_a_new_matching_topic_is_read_unless_its_settings_are_known_to_be_wrong() -> None:
    wrong = TopicFinding(
        "wrong", TopicState.DIFFERS, "retention.ms", ">= 7", "5", "that is much", "x=7"
    )
    by_topic = {
        "right": [],
        "hidden": [TopicFinding("hidden", TopicState.UNREADABLE)],
        "wrong": [wrong],
    }
    found = {f.subject: f for f in topics.check_matching(by_topic, ADDRESS, "User:x")}
    assert severities(found.values()) == ["ok", "warning", "warning"]
    not_read = [subject for subject, f in found.items() if "is not read" in f.found]
    assert not_read == ["topic wrong"], "as kafka/topics/discovery.py decides"


# ---- rights -------------------------------------------------------------------------------------

NEEDED = ({"READ", "WRITE"}, {"DESCRIBE_CONFIGS"})


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ({"READ", "WRITE", "DESCRIBE_CONFIGS", "ALTER"}, ["ok"]),
        ({"READ", "WRITE"}, ["warning"]),
        ({"WRITE"}, ["error", "warning"]),
        (None, ["ok"]),
    ],
)
def test_what_a_principal_lacks(allowed: set[str] | None, expected: list[str]) -> None:
    told = topic(rights=None if allowed is None else frozenset(allowed))
    found = list(rights.check_topic(told, NEEDED, ADDRESS, "User:x"))
    assert severities(found) == expected
    assert ["--operation Read --topic t" in f.remedy for f in found if f.severity == "error"] in (
        [],
        [True],
    )


def test_a_topic_that_may_not_be_seen_lacks_every_right() -> None:
    found = list(rights.check_topic(Topic("t", 29), NEEDED, ADDRESS, "User:x"))
    assert "User:x lacks READ, WRITE" in found[0].found
    assert "--operation DescribeConfigs" in found[1].remedy


# ---- trial and clocks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "errors"),
    [
        ({trial.COMMITTED, trial.OFFSETS}, []),
        ({trial.COMMITTED}, ["committed_seen"]),
        ({trial.COMMITTED, trial.OFFSETS, trial.ZOMBIE}, ["fencing"]),
        ({trial.COMMITTED, trial.OFFSETS, trial.ABORTED}, ["read_committed"]),
    ],
)
def test_what_a_reader_of_committed_records_has_seen(seen: set[bytes], errors: list[str]) -> None:
    found = trial.check_seen("t", seen, {trial.COMMITTED, trial.OFFSETS})
    assert [f.code for f in found if f.severity == "error"] == errors


@pytest.mark.parametrize(
    ("least_ms", "most_ms", "severity", "said"),
    [
        (-2, 5, "ok", "to within 5 ms"),
        (900, 1_000, "ok", "ahead by 900 to 1000 ms"),
        (1_001, 1_010, "error", "no slot is closed beyond 1000"),
        (-1_010, -1_001, "warning", "behind by 1001 to 1010 ms"),
        (-1_010, -999, "ok", "behind by 999"),
        (-5_000, 5_000, "ok", "to within 5000 ms"),
    ],
)
def test_clocks_that_differ(least_ms: int, most_ms: int, severity: str, said: str) -> None:
    finding = clocks.check_skew("broker 1", least_ms, most_ms, 1_000)
    assert finding.severity == severity
    assert said in finding.found


# ---- host ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        ("ext4", "ok"),
        ("xfs", "ok"),
        ("nfs4", "error"),
        ("overlay", "warning"),
        ("btrfs", "warning"),
        ("zfs", "warning"),
        ("bcachefs", "warning"),
        ("tmpfs", "warning"),
    ],
)
def test_file_systems(kind: str, severity: str) -> None:
    assert data_directory.check_file_system(Path("/data"), kind).severity == severity


def test_room_for_the_wheel_and_for_timers() -> None:
    ring, least, room = 134 << 20, 256 << 20, 2 << 30
    assert data_directory.check_space("d", ring + least + room, ring, least).severity == "ok"
    assert (
        data_directory.check_space("d", ring + least + room - 1, ring, least).severity == "warning"
    )
    assert data_directory.check_space("d", ring + least - 1, ring, least).severity == "error"
    assert "leaves 256 (storage.min_free), the wheel takes 134" in (
        data_directory.check_space("d", ring, ring, least).found
    )


def test_memory_for_spark_and_for_reading_ahead() -> None:
    assert host.check_memory(3 << 30, 2 << 30, 1 << 30).severity == "ok"
    assert host.check_memory((3 << 30) - 1, 2 << 30, 1 << 30).severity == "warning"
