"""What `status` and `list` print for people.

Also of cli/options.py, cli/shard.py, cli/times.py, ops/connection.py.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.harness.cancel_world import cancel
from tests.harness.config_file import small_settings, write_config
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.timer_rows import P0, TimerRow

import duewheel.api
from duewheel.api.dead_letters import Replayed
from duewheel.api.model import Result, is_instant
from duewheel.api.requests import TimerFilter
from duewheel.api.reshard import NewShard, Resharded
from duewheel.api.schedules import NextInstants, ScheduleSummary
from duewheel.api.shard import ShardView
from duewheel.api.timers import TimerSummary
from duewheel.api.topics import ReadRecord
from duewheel.checkpoints.dlq_replay_position import ReplayPosition
from duewheel.checkpoints.live_fields import Lag
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.cli.dead_letters import letter_line
from duewheel.cli.main import cli
from duewheel.cli.output import Printer, printable, say
from duewheel.cli.status_text import status_lines
from duewheel.cli.timers import timer_line
from duewheel.cli.topics import record_line
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings, load
from duewheel.dev.listeners import HOST, free_ports
from duewheel.errors import ConfigError
from duewheel.ops import connection, reshard
from duewheel.ops.dead_letters.listing import summary_of
from duewheel.ops.shard.pause import set_paused
from duewheel.ops.shard.status import read_status
from duewheel.ops.timers.pending import list_timers
from duewheel.schemas.dead_letters import DeadLetter
from duewheel.schemas.wire.single_record import Header

DURATIONS = {
    "wait_ms",
    "apart_ms",
    "batch_age_ms",
    "behind_ms",
    "clock_skew_ms",
    "every_ms",
    "floor_ahead_ms",
    "jitter_ms",
    "lag_ms",
    "late_ms",
    "lateness_ms",
    "precision_ms",
    "width_ms",
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return small_settings(tmp_path / "data")


def pending(settings: Settings) -> list[TimerSummary]:
    return list(list_timers(settings, TimerFilter(), 100))


def test_results_show_no_milliseconds_and_no_python(capsys: pytest.CaptureFixture[str]) -> None:
    parts = ["a-0", "a-2"]
    shard = NewShard(shard=0, partitions=parts, delivered_until_ms=1_800_000_000_000, apart_ms=0)
    moved = Resharded(dry_run=True, from_shards=1, to_shards=2, moved=1, shards=[shard])
    Printer(is_json=False).show(moved)
    assert capsys.readouterr().out.splitlines() == [
        "dry_run                  true",
        "from_shards              1",
        "to_shards                2",
        "would move               1",
        "shards.0.shard           0",
        "shards.0.partitions      a-0, a-2",
        "shards.0.delivered_until 2027-01-15T08:00:00.000Z",
        "shards.0.apart           0ms",
    ]


@pytest.mark.parametrize(
    ("sealed", "shown"),
    [([], "there are 2 shards: nothing to change"), ([0, 1], "sealed 0, 1")],
)
def test_an_undo_of_a_reshard_is_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: list[int], shown: str
) -> None:
    result = Resharded(
        dry_run=True, from_shards=2, to_shards=2, moved=0, sealed=sealed, shards=[], took_s=1
    )
    monkeypatch.setattr(connection, "require_kafka", lambda _: nullcontext())
    monkeypatch.setattr(reshard, "reassign_partitions", lambda *_, **__: result)
    config = str(write_config(tmp_path, f"{HOST}:1", "app"))
    ended = CliRunner().invoke(cli, ["reshard", "--to", "2", "--dry-run", "--config", config])
    lines = [" ".join(line.split()) for line in ended.output.splitlines()]
    assert shown in lines
    assert len(lines) == 1 or sealed


@pytest.mark.parametrize(("from_shards", "told"), [(3, True), (2, False)])
def test_a_reshard_tells_of_a_pause_that_does_not_go_with_its_timers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_shards: int, *, told: bool
) -> None:
    result = Resharded(
        dry_run=True, from_shards=from_shards, to_shards=2, moved=0, shards=[], took_s=1
    )
    monkeypatch.setattr(connection, "require_kafka", lambda _: nullcontext())
    monkeypatch.setattr(reshard, "reassign_partitions", lambda *_, **__: result)
    config = write_config(tmp_path, f"{HOST}:1", "app")
    command = ["reshard", "--to", "2", "--dry-run", "--config", str(config)]
    assert "pause" not in CliRunner().invoke(cli, command).stderr, "no directory here"
    settings = load(config)
    LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    assert "pause" not in CliRunner().invoke(cli, command).stderr
    set_paused(settings, "dequeue", on=True)
    ended = CliRunner().invoke(cli, command)
    assert (f"dequeue is paused in {settings.storage.data_dir}" in ended.stderr) is told


def test_lag_is_never_negative() -> None:
    lag = Lag(polled_ms=NOW_MS, messages=3, oldest_ms=NOW_MS + 5, stuck_ms=NOW_MS + 5, open=0)
    assert (lag.age_ms(NOW_MS), lag.batch_age_ms(NOW_MS + 7)) == (0, 2)


def test_a_line_of_a_timer(settings: Settings) -> None:
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    due_ms = NOW_MS + 5_000
    world.append(*(TimerRow(0, n, due_ms, timer_id=b"id-%d" % n) for n in range(2)))
    world.append(cancel(2, timer_id=b"id-1"))
    world.stop()
    first, second = (timer_line(row, NOW_MS) for row in pending(settings))
    assert first.startswith("2027-01-15T08:00:05.000Z  in 5s  ")
    assert "id id-0" in first and "CANCELLED" not in first
    assert second.endswith("CANCELLED: will not be delivered")


def test_what_is_special_about_a_timer() -> None:
    row = {
        "id": "a-0@1",
        "source": "a-0@1",
        "due_ms": NOW_MS + 86_400_000 * 3,
        "leaves_ms": NOW_MS + 3_600_000,
        "topic": "orders",
        "level": 4,
        "key_base64": "/wA=",
        "value_bytes": None,
        "rolled": True,
        "cancelled": False,
        "paused": False,
        "page": "1-2",
        "handle": None,
    }
    assert timer_line(TimerSummary.model_validate(row), NOW_MS) == (
        "2027-01-15T09:00:00.000Z  in 1h  orders  key (base64) /wA=  id a-0@1  no value  level 4  "
        "rolls; due 2027-01-18T08:00:00.000Z (in 3d)"
    )
    dead = {**row, "due_ms": None, "rolled": False, "value_bytes": 3, "level": None}
    assert timer_line(TimerSummary.model_validate(dead), NOW_MS).endswith(
        "id a-0@1  3 bytes  dead letter"
    )


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ([], [("UNIQ_KEY", b"report")], "key k  id report  "),  # a failed delivery
        ([("UNIQ_KEY", b"report")], [], "key k  id report  "),  # a rejected message
        ([], [("UNIQ_KEY", b"timers-0@5")], "key k  1 bytes"),  # a timer without an id
        ([], [], "key k  1 bytes"),
    ],
)
def test_a_dead_letter_has_the_id_of_its_timer(
    before: list[Header], after: list[Header], shown: str
) -> None:
    error: list[Header] = [("TIMER_ERROR_CODE", b"expired"), ("TIMER_ERROR", b"late")]
    headers = [*before, *error, *after, ("TIMER_SOURCE", b"timers-0@5")]
    letter = DeadLetter(0, 7, NOW_MS, b"k", b"v", headers)
    summary = summary_of(letter, ReplayPosition.decode(None, "id"))
    expected = dict([*before, *after]).get("UNIQ_KEY")
    assert summary.as_json().get("id") == (expected.decode() if expected else None)
    assert shown in letter_line(summary)


@pytest.fixture
def with_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The settings of a shard with three timers of the id `many`."""
    monkeypatch.setattr(connection, "require_kafka", lambda _: nullcontext())
    path = write_config(tmp_path, f"{HOST}:1", "app")
    settings = load(path)
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    world.append(*(TimerRow(0, n, NOW_MS + 5_000, timer_id=b"many") for n in range(3)))
    world.stop()
    return str(path)


def test_a_filter_that_selects_too_many_names_the_options(with_many: str) -> None:
    words = ["cancel-matching", "--id", "many", "--at-most", "2", "--dry-run"]
    with pytest.raises(ConfigError) as raised:
        cli([*words, "--config", with_many], standalone_mode=False)
    text = str(raised.value)
    assert text.startswith("more than 2 timers match")
    assert "--at-most" in text and "--dry-run" in text


def test_a_dry_run_of_a_bulk_cancel_has_written_nothing(with_many: str) -> None:
    words = ["cancel-matching", "--id", "many", "--dry-run", "--config", with_many]
    as_text = CliRunner().invoke(cli, words).stdout.splitlines()
    assert [line.split() for line in as_text if "3" in line] == [
        ["matched", "3"],
        ["would", "write", "3"],
    ]
    as_json = json.loads(CliRunner().invoke(cli, [*words, "--output", "json"]).stdout)
    assert (as_json["matched"], as_json["written"]) == (3, 0)


def test_no_producer_writes_to_the_terminal() -> None:
    row = {
        "due_ms": NOW_MS,
        "leaves_ms": NOW_MS,
        "topic": "orders",
        "level": None,
        "key": "k\x1b[2J",
        "id": "a\n2027-01-15  false \u202e line é",
        "value_bytes": 1,
        "rolled": False,
        "cancelled": False,
        "paused": False,
        "source": "a-0@1",
        "page": "1-2",
        "handle": None,
    }
    line = printable(timer_line(TimerSummary.model_validate(row), NOW_MS))
    assert r"key k\x1b[2J  id a\n2027-01-15  false \u202e line é" in line


def test_no_name_of_a_header_writes_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "header a\ncancelled true\x1b[2J"
    Printer(is_json=False).show({"id": "b", name: "v"})
    Printer(is_json=False).row({name: "v"})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(r"header a\ncancelled true\x1b[2J" in line for line in lines[1:])


def test_no_error_writes_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("two lines:\n  a\x1b[2J")
    Printer(is_json=False).show({}, ["found\nerrors: 0\x7f"])
    Printer(is_json=True).show({"a": "\x7f\n"})
    shown = capsys.readouterr()
    assert shown.err == "duewheel: two lines:\n  a\\x1b[2J\n"
    text, as_json = shown.out.splitlines()
    assert text == r"found\nerrors: 0\x7f"
    assert json.loads(as_json) == {"a": "\x7f\n"}


def test_a_value_that_is_cut_says_so() -> None:
    row = ReadRecord(
        partition=0, offset=7, timestamp_ms=NOW_MS, value="v" * 600, headers=[], late_ms=None
    )
    assert record_line(row).endswith(f"0@7  no key  {'v' * 600}")
    longer = row.model_copy(update={"value": "é" * 601})
    assert record_line(longer).endswith(f"  {'é' * 600}… (601 characters)")


@pytest.mark.parametrize("factor", ["0", "-7", "32768"])
def test_no_broker_is_asked_for_an_impossible_replication(factor: str) -> None:
    ended = CliRunner().invoke(cli, ["init", "--replication-factor", factor])
    assert ended.exit_code == ConfigError.exit_code
    assert "is not in the range 1<=x<=32767" in ended.output


def test_stats_says_that_cancelled_timers_count(tmp_path: Path) -> None:
    config = write_config(tmp_path, "127.0.0.1:1", "app")
    settings = load(config)
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    world.append(TimerRow(0, 1, NOW_MS + 5_000, timer_id=b"a"))
    world.append(cancel(2, timer_id=b"a"))
    world.stop()
    words = ["stats", "--config", str(config)]
    first = CliRunner().invoke(cli, words).output.splitlines()[1]
    assert first.split(maxsplit=1) == ["pending", "1, cancelled ones included"]
    counts = json.loads(CliRunner().invoke(cli, [*words, "--output", "json"]).output)
    assert counts["pending"] == 1


def test_status_begins_with_what_matters_and_has_no_bounds(settings: Settings) -> None:
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    world.append(TimerRow(0, 1, NOW_MS + 5_000))
    world.stop()
    found = read_status(settings, SystemClock())
    lines = list(status_lines(found, NOW_MS))
    assert lines[0].split() == ["ready", "no"]
    assert "ingest is stopped (ingest_not_running)" in lines[1]
    named = dict(line.split(maxsplit=1) for line in lines if not line.startswith(" "))
    assert named["pending"] == "1, cancelled ones included"
    assert named["ingest"] == "stopped; lag not known yet"
    assert named["dequeue"] == "stopped"
    assert len(lines) < 15
    assert not set(found.bounds) & set("\n".join(lines).split())


def test_status_of_a_stopped_shard_without_kafka_says_what_is_not_known(
    settings: Settings, tmp_path: Path
) -> None:
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    now_ms = SystemClock().now_ms()
    with State.open(settings.storage.data_dir) as state:
        state.live.note_lag(Lag(now_ms - 69_000, 0, now_ms, now_ms, 0))
        state.live.beat(Role.DEQUEUE, 1, now_ms - 69_000, 0)
    world.stop()
    (nobody,) = free_ports(1)
    config = tmp_path / "duewheel.toml"
    timer = settings.timer
    config.write_text(
        f'[kafka]\nbootstrap_servers = "{HOST}:{nobody}"\n[timer]\ntopics = ["timers"]\n'
        f'slots = {timer.slots}\nroll_window = "1h"\nmargin = "1m"\n'
        f'[storage]\ndata_dir = "{settings.storage.data_dir}"\n'
    )
    ended = CliRunner().invoke(cli, ["status", "--config", str(config)], standalone_mode=False)
    assert ended.exception is None
    said = re.sub(r"\d+ s\b|1m\d+s", "69 s", ended.output)
    assert "topics for 69 s: dequeue, which asks, is stopped (ends_unknown)" in said
    assert f"Kafka answers no client: {HOST}:{nobody}: Connection refused" in said
    assert "stopped; lag not known, 0 messages 69 s ago" in said
    assert "delivery is 69 s behind: timers due since then, if any, wait (dequeue_behind)" in said


def a_shard_at_work() -> ShardView:
    process: dict[str, object] = {"pid": 7, "state": "running"}
    ingest: dict[str, object] = {
        **process,
        "lag": 12,
        "lag_ms": 61_000,
        "batch_age_ms": 0,
        "lag_polled_ms": NOW_MS,
        "open_messages": 0,
    }
    ingest["high_water"] = {}
    dequeue = {
        **process,
        "behind_ms": 2_000,
        "delivered": 5,
        "dead_letters": 1,
        "dead_letters_wait": True,
        "copies_held": 3,
        "paused_timers": {
            "target mails": "until `resume` (no provider)",
            "tag sale": "until 9 (a\nb)",
        },
        "targets_closed": {"bills": "partitions [0]: no leader"},
        "timer_topics_resting": {"later": "mails refused a record"},
        "closing_blocked": True,
        "clock_skew_ms": 1_500,
        "floor_ms": NOW_MS,
        "floor_ahead_ms": 0,
    }
    found = {
        "ready": False,
        "not_ready": {
            "recovering": "7 offsets are read again; nothing is delivered until then",
        },
        "shard": 0,
        "role": "standby",
        "data_dir": "/d",
        "pending": 4,
        "delivered": 5,
        "ingest": ingest,
        "dequeue": dequeue,
        "timer_topics": {
            "read": ["a", "b"],
            "left_out": {"c": "no right"},
            "faulty": {},
            "far_ahead": {},
        },
        "quotas": {
            "a": {"per_second": 100, "waiting": 360_000},
            "b": {"per_second": 5, "waiting": 0},
            "d": {"per_second": 5, "waiting": 10},
        },
        "rates": {
            "mails": {"rate": "20/m", "waiting": 3, "wait_ms": 9_000},
            "orders": {"rate": "500/s", "waiting": 0, "wait_ms": 0},
        },
        "disk": {"free_bytes": 3 << 30, "min_free_bytes": 1 << 28, "rows_without_room": 2},
        "standby": {
            "missing": {"a-0": 3},
            "behind_ms": 1_000,
            "followed_slot": None,
            "promotion_wanted": False,
        },
        "copies_signed": False,
        "run": None,
        "open_targets": {},
        "bounds": {},
        "recovering": None,
    }
    return ShardView.model_validate(found)


def test_status_of_a_shard_at_work() -> None:
    assert list(map(printable, status_lines(a_shard_at_work(), NOW_MS))) == [
        "ready         no",
        "              7 offsets are read again; nothing is delivered until then (recovering)",
        "shard         0, standby, in /d",
        "pending       4, cancelled ones included",
        "delivered     5",
        "ingest        running, process 7; lag 12 messages, the oldest seen 1m1s ago",
        (
            "dequeue       running, process 7; 2s behind; since its start 5 delivered, "
            "1 dead letters; "
            "dead letters wait for their topic; 3 copies wait for their partition; closes no slot: "
            "this clock is too far ahead of Kafka's, or Kafka's is unknown"
        ),
        "parked for    bills: partitions [0]: no leader",
        "parked from   later: mails refused a record",
        "paused        target mails: until `resume` (no provider)",
        "              tag sale: until 9 (a\\nb)",
        "timer topics  a, b",
        "              c: no right",
        "quotas        a: 360000 messages wait, 1h at 100 per second",
        "              d: 10 messages wait, 2s at 5 per second",
        "rates         mails: 3 timers wait, 9s at 20/m",
        "disk          3.0 GiB free, 0.2 GiB of them reserved; 2 rows wait",
        "standby       1s behind its owner; reads 3 offsets again",
        (
            "copies        have no MAC, so producers can forge them: stop the shard, then "
            "`duewheel reconfigure --rotate-key`"
        ),
    ]


def test_instants_are_times_in_text_and_numbers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    schedule = ScheduleSummary(name="a", state="active", every_ms=20, starts_ms=NOW_MS, note=None)
    Printer(is_json=False).show(schedule)
    assert capsys.readouterr().out.splitlines() == [
        "name   a",
        "state  active",
        "every  20ms",
        "starts 2027-01-15T08:00:00.000Z",
        "note   -",
    ]
    found = NextInstants(name="a", zone=None, paused=False, due_ms=[NOW_MS, NOW_MS])
    Printer(is_json=False).row(found)
    due = ", ".join(["2027-01-15T08:00:00.000Z"] * 2)
    assert capsys.readouterr().out == f"name=a  paused=false  due={due}\n"
    Printer(is_json=True).show(found)
    assert json.loads(capsys.readouterr().out) == found.as_json()


def test_a_name_of_a_topic_is_no_unit(capsys: pytest.CaptureFixture[str]) -> None:
    topics = {"orders_ms": 5, "due_ms": 7}
    Printer(is_json=False).show(Replayed(dry_run=False, replayed=12, topics=topics, refused={}))
    assert capsys.readouterr().out.splitlines()[2:] == ["topics.orders_ms 5", "topics.due_ms    7"]


def test_fields_that_differ_in_their_unit_have_two_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Printer(is_json=False).show(a_shard_at_work().ingest)
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (rows["lag"], rows["lag_ms"], rows["batch_age"]) == ("12", "1m1s", "0ms")


def test_a_setting_keeps_its_name_in_text(tmp_path: Path) -> None:
    config = write_config(tmp_path, "127.0.0.1:1", "app", timer={"precision_ms": 100})
    for words in ([], ["--all"]):
        shown = CliRunner().invoke(cli, ["config", "check", *words, "--config", str(config)])
        rows = [line.split()[:2] for line in shown.output.splitlines()]
        assert ["timer.precision_ms", "100ms"] in rows


def test_each_instant_of_a_result_is_a_time_in_text() -> None:
    """One that is declared as a number would be shown as a duration of decades."""
    for module in pkgutil.iter_modules(duewheel.api.__path__, "duewheel.api."):
        importlib.import_module(module.name)
    numbers, kinds = set(), [Result]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        numbers |= {name for name, field in kind.model_fields.items() if not is_instant(field)}
    assert {name for name in numbers if name.endswith("_ms")} == DURATIONS


def test_a_dry_run_says_what_would_happen(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"dry_run": True, "replayed": 2, "topics": {"a": 2}, "refused": {"no_due_time": 1}}
    Printer(is_json=False).show(result)
    assert capsys.readouterr().out.splitlines() == [
        "dry_run                  true",
        "would replay             2",
        "topics.a                 2",
        "would refuse.no_due_time 1",
    ]
    Printer(is_json=True).show(result)
    assert json.loads(capsys.readouterr().out) == result, "programs find the same names"
    Printer(is_json=False).show({**result, "dry_run": False})
    assert "would" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["pause"], "name one of"),
        (["resume", "ingest", "--target", "a"], "name one of"),
        (["pause", "ingest", "--tag", ""], "name one of"),
        (["pause", "ingest", "--for", "1h"], "are for --target, --timer-topic and --tag"),
        (["pause", "--target", "timers"], "'timers' is a topic of"),
        (["pause", "--target", "app.dead-letter"], "'app.dead-letter' is a topic of"),
        (["pause", "--timer-topic", "orders"], "'orders' is no timer topic of"),
        (["pause", "--target", "orders", "--for", "2 moons"], '--for: "2 moons" is no duration'),
        (["pause", "--target", "orders", "--note", "a" * 256], "--note: "),
        (["pause", "--tag", "a" * 65], "a tag has 1 to 64 bytes of UTF-8"),
        (["resume", "--tag", "\udcff"], "a tag has 1 to 64 bytes of UTF-8"),
    ],
)
def test_a_pause_of_what_cannot_be_paused_is_refused(
    tmp_path: Path, words: list[str], why: str
) -> None:
    config = write_config(tmp_path, "127.0.0.1:1", "app", timer={"topics": ["timers"]})
    done = CliRunner().invoke(cli, [*words, "--config", str(config)])
    assert done.exit_code != 0
    assert why in f"{done.output} {done.exception}"
