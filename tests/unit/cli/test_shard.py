"""The options of `pause`, `resume` and `reshard`, and what they print."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.harness.config_file import write_config
from tests.harness.local_world import LocalWorld
from tests.harness.timer_rows import P0

from duewheel.api.reshard import Resharded
from duewheel.cli.main import cli
from duewheel.config.settings import load
from duewheel.dev.listeners import HOST
from duewheel.ops import connection, reshard
from duewheel.ops.shard.pause import set_paused


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
