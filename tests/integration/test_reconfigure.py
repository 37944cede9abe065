"""`duewheel reconfigure` on a real broker: settings that change, topics that are recreated."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from tests.harness.launcher import objects, run, wait_until
from tests.harness.reader import read_topic
from tests.harness.sparkless_shard import Restartable, running, timer
from tests.harness.topics import alter
from tests.harness.whole_shard import WholeShard

from duewheel.checkpoints.state_file import State
from duewheel.config.settings import load
from duewheel.errors import ConfigError, DuewheelError, Locked, RecoveryRefused
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.reconfigure import accept_loss, apply_settings
from duewheel.threads import beside

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def set_levels(path: Path, *levels: str) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("levels")]
    at = lines.index("[timer]") + 1
    quoted = ", ".join(f'"{level}"' for level in levels)
    path.write_text("\n".join([*lines[:at], f"levels = [{quoted}]", *lines[at:]]) + "\n")


def test_settings_change_for_what_comes_from_then_on(config: Path) -> None:
    set_levels(config, "1s")
    with running(config) as shard:
        shard.send(shard.timers, 0, timer(shard, b"by the old level", ("DELAY", b"1")))
        shard.pump()
        set_levels(config, "3s")
        with pytest.raises(Locked, match=f"dequeue runs already, as process {os.getpid()}"):
            apply_settings(load(config), dry_run=False, rotate_key=True)
    with pytest.raises(RecoveryRefused, match=r"levels_ms: was \[1000\], is \[3000\].*reconfigure"):
        Restartable(config)
    dry = apply_settings(load(config), dry_run=True)
    _, (done,) = objects(config, "reconfigure")
    assert done == {**dry.as_json(), "dry_run": False}
    assert done["changes"] == {"timer.levels": {"old": ["1s"], "new": ["3s"]}}
    # A record and its transaction's marker.
    assert done["since"] == {f"{shard.timers}-0": 2, f"{shard.timers}-1": 0}
    assert apply_settings(load(config), dry_run=False).changes == {}
    with running(config) as shard:
        shard.send(shard.timers, 0, timer(shard, b"by the new level", ("DELAY", b"1")))
        shard.pump()
        shard.pump_until([b"by the new level", b"by the old level"])
        shard.send(shard.timers, 0, timer(shard, b"not read yet", ("DELAY", b"1")))
    _, (rotated,) = objects(config, "reconfigure", "--rotate-key")
    assert (rotated["changes"], rotated["key_rotated"]) == ({}, True)
    assert rotated["since"] == {f"{shard.timers}-0": 6, f"{shard.timers}-1": 0}
    with running(config) as shard:
        shard.send(shard.timers, 0, timer(shard, b"under the new key", ("DELAY", b"1")))
        shard.pump()
        every = [b"by the new level", b"by the old level", b"not read yet", b"under the new key"]
        shard.pump_until(every)


def test_a_signal_ends_the_wait_for_a_dequeue_that_does_not_answer(config: Path) -> None:
    with running(config) as shard:  # nothing pumps
        set_levels(config, "3s")
        settings = load(config)
        alter(shard.servers, settings.dead_letter_topic, {"max.message.bytes": "2000000"})
        with State.open(settings.storage.data_dir) as state:

            def interrupt() -> None:
                wait_until(lambda: state.live.wanted_settings, "nothing is requested")
                os.kill(os.getpid(), signal.SIGINT)

            interrupted = beside("interrupting", interrupt)
            with pytest.raises(DuewheelError, match=r"before the interrupt.*as soon as it can"):
                apply_settings(settings, dry_run=False)
            interrupted.result()
            assert state.live.wanted_settings


def test_a_topic_that_was_made_anew_is_accepted_and_the_old_one_delivered(
    config: Path,
) -> None:
    """A timer that was cancelled in the old one stays so; one of its id in the new one is not met,
    though it lies where the old one lay.
    """
    in_5_s, same_id = ("TIMER_DELAY_SEC", b"5"), ("UNIQ_KEY", b"id")
    with running(config) as shard:
        cancelled = timer(shard, b"cancelled", in_5_s, same_id)
        for partition in (0, 1):
            old = [timer(shard, b"old %d" % n, in_5_s) for n in range(3)]
            cancel: Any = None, None, [("TIMER_DEL_UNIQKEY", b"id")]
            shard.send(shard.timers, partition, cancelled, *old, cancel)
        shard.pump()
        assert shard.delivered() == []
    timers = shard.timers
    with shard.admin() as admin:
        admin.delete_topics([timers])
        wait_until(lambda: not admin.partition_counts([timers]), f"{timers} is not deleted")
        with pytest.raises(ConfigError, match=f"add --accept-loss {timers}-1"):
            accept_loss(shard.settings, [f"{timers}-0"], dry_run=False)
        admin.init_topics(shard.settings, partitions=2)
    shard.send(timers, 0, timer(shard, b"new", ("TIMER_DELAY_MS", b"1"), same_id))
    with pytest.raises(RecoveryRefused, match=r"recreated.*--accept-loss"):
        Restartable(config)
    both = [word for number in (0, 1) for word in ("--accept-loss", f"{timers}-{number}")]
    _, (done,) = objects(config, "reconfigure", *both)
    expected = {"kind": "recreated", "was": 6, "start": 0, "unread": 0}
    assert done["accepted"] == {f"{timers}-{number}": expected for number in (0, 1)}
    with running(config) as shard:
        wanted = sorted([b"new", *(b"old %d" % n for n in (0, 0, 1, 1, 2, 2))])
        shard.pump_until(wanted)
        time.sleep(1)
        shard.pump()
        assert shard.delivered() == wanted
        assert shard.letters() == []


@pytest.mark.spark
def test_one_more_target_while_the_shard_runs(shard: WholeShard) -> None:
    """A reply topic and a mapping, too; with the same processes, and the same JVM."""
    shard.start()
    pids = {name: shard.status()[name]["pid"] for name in ("ingest", "dequeue")}
    text, new = shard.config.read_text(), f"{shard.target}.new"
    with KafkaAdmin(shard.settings.kafka.client_options("admin")) as admin:
        admin.create_topic(new, 1)
    assert f'"{shard.target}"' in text
    text = text.replace(f'"{shard.target}"', f'"{new}"')
    shard.config.write_text(text.replace('targets = ["*"]', 'targets = ["*.orders*"]'))
    dry = shard.command("reconfigure", "--dry-run", "--output", "json")
    mapping = f'timer.mapping."{shard.timers}"'
    assert dry["changes"][mapping] == {"old": shard.target, "new": new}
    assert dry["changes"]["timer.targets"] == {"old": ["*"], "new": ["*.orders*"]}
    done = shard.command("reconfigure", "--output", "json")
    assert done["changes"] == dry["changes"]
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    producer.send(shard.timers, b"new", headers=[("TIMER_DELAY_MS", b"0")]).get(timeout=30)
    producer.close()
    shard.wait(lambda: [record.value for record in read_topic(shard.servers, new)] == [b"new"])
    assert shard.command("reconfigure", "--output", "json")["changes"] == {}
    assert shard.status()["dequeue"]["pid"] == pids["dequeue"]
    followed = shard.events("messages are read under other settings from here on")
    assert [each["pid"] for each in followed] == [pids["ingest"]]
    # A file that cannot be taken: the shard keeps what it has, and delivers.
    shard.config.write_text(text.replace("slots = 100000", "slots = 200000"))
    done = run(shard.config, "reconfigure")
    assert done.returncode == ConfigError.exit_code and "slots" in done.stderr
    shard.config.write_text(text.replace('receipts"', 'receipts.missing"'))
    done = run(shard.config, "reconfigure")
    assert done.returncode == ConfigError.exit_code and "receipts.missing" in done.stderr
    with State.open(shard.settings.storage.data_dir) as state:
        state.live.want_settings(1)  # of another configuration than the file
        shard.wait(lambda: not state.live.wanted_settings)
    assert shard.events("the requested settings are refused")
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    producer.send(shard.timers, b"still", headers=[("TIMER_DELAY_MS", b"0")]).get(timeout=30)
    producer.close()
    shard.wait(lambda: len(read_topic(shard.servers, new)) == 2)
    assert shard.status()["dequeue"]["pid"] == pids["dequeue"]
