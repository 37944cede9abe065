"""`duewheel health`: the answer of `status`, from two settings and few imports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duewheel.checkpoints.commit_and_close_pages import Close, Commit
from duewheel.checkpoints.file_lock import FileLock
from duewheel.checkpoints.live_fields import Lag
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import Damage, State
from duewheel.clock import SystemClock
from duewheel.config.keys_and_defaults import StorageSection
from duewheel.config.settings import load
from duewheel.config.sources import SingleSettings
from duewheel.ops.shard.local_readiness import not_ready_reasons
from duewheel.ops.shard.status import read_status
from duewheel.runtime import health_command
from duewheel.runtime.readiness import ReadyBounds

# `dataclasses` brings `inspect`: 8 ms of 50, and each class of it another half.
HEAVY = ("pydantic", "numpy", "pyarrow", "click", "structlog", "kafka", "dataclasses", "inspect")
IMPORTED = "import sys; from duewheel.runtime import health_command; print(*sys.modules)"


@pytest.fixture
def data_dir(clean_surroundings: None, tmp_path: Path) -> Iterator[Path]:
    """A shard that does its work: this process plays both of its processes."""
    path = tmp_path / "duewheel-data"
    path.mkdir()
    locks = [FileLock(path / role.lock_name) for role in Role]
    now_ms = SystemClock().now_ms()
    wheel = load(None, {"timer": {"topics": "timers"}}).wheel
    with State.create(path, wheel.precision_ms, wheel.slots) as state:
        for role, lock in zip(Role, locks, strict=True):
            assert lock.try_acquire()
            state.live.beat(role, os.getpid(), now_ms, 0)
        state.live.note_lag(Lag(now_ms, 0, now_ms, now_ms, 0))
    yield path
    for lock in locks:
        lock.close()


def test_a_ready_shard(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert health_command.main() == 0
    assert capsys.readouterr().out == "ready\n"
    with State.open(data_dir) as state:
        state.live.beat(Role.DEQUEUE, os.getpid(), SystemClock().now_ms(), 60_000)
    assert health_command.main() == 1
    assert capsys.readouterr().out.startswith("dequeue_behind: ")


def test_the_probe_and_the_command_have_one_answer_in_a_recovery(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load(None, {"timer": {"topics": "timers"}})

    def answers() -> list[str]:
        code = health_command.main()
        lines = capsys.readouterr().out.splitlines()
        reasons = not_ready_reasons(settings, SystemClock())
        assert lines == ([f"{name}: {text}" for name, text in reasons.items()] or ["ready"])
        assert code == int(bool(reasons))
        return list(reasons.values())

    assert answers() == []
    with State.open(data_dir) as state:
        state.note_damage(Damage.CACHE_LOST)
        assert answers() == ["files are made whole; nothing is delivered until then"]
        state.set_recovered(state.generation)
        state.write_close(Close(0, {}, 9, {("timers", 0): 5}))
        assert answers() == ["5 offsets are read again; nothing is delivered until then"]
        state.set_standby(on=True)
        assert answers() == []
        state.set_standby(on=False)
        state.write_commit(Commit(1, {("timers", 0): 5}, {}, 5))
        assert answers() == []


@pytest.mark.parametrize(
    ("variable", "value"), [("SLOTS", "4_000_000"), ("PRECISION_MS", "100ms"), ("", "damaged")]
)
def test_files_that_cannot_be_read_have_one_answer(
    data_dir: Path,
    variable: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of the files of other settings each number would be of another time."""
    if variable:
        monkeypatch.setenv(f"DUEWHEEL_TIMER__{variable}", value)
    else:
        (data_dir / "state").write_bytes(b"x")
    settings = load(None, {"timer": {"topics": "timers"}})
    reasons = not_ready_reasons(settings, SystemClock())
    assert reasons.keys() == {"unreadable"}
    for health in (health_command.main, lambda: health_command.report_of(settings)):
        assert health() == 1
        assert capsys.readouterr().out == f"unreadable: {reasons['unreadable']}\n"
    if variable:
        assert read_status(settings, SystemClock()).not_ready == reasons


@pytest.mark.usefixtures("clean_surroundings")
def test_before_there_is_a_shard(capsys: pytest.CaptureFixture[str]) -> None:
    assert health_command.main() == 2
    assert "there is no data directory duewheel-data" in capsys.readouterr().err


def test_a_long_interval_between_batches_moves_the_bounds(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = SystemClock().now_ms()
    with State.open(data_dir) as state:
        state.live.note_lag(Lag(now_ms, 1, now_ms - 40_000, now_ms, 0))
    assert health_command.main() == 1
    monkeypatch.setenv("DUEWHEEL_INGEST__TRIGGER_MS", "1m")
    assert health_command.main() == 0
    monkeypatch.setenv("DUEWHEEL_INGEST__TRIGGER_MS", "soon")
    assert health_command.main() == 2


@pytest.mark.usefixtures("data_dir")
@pytest.mark.parametrize("precision", ["50.0", "5e1", '"50ms"'])
def test_numbers_are_written_in_all_ways_that_the_settings_take(precision: str) -> None:
    timer = f'topics = "timers"\nslots = 2097152.0\nprecision_ms = {precision}\n'
    Path("duewheel.toml").write_text(f"[timer]\n{timer}")
    settings = load(None)
    assert (settings.wheel.slots, settings.wheel.precision_ms) == (2_097_152, 50)
    assert health_command.main() == 0


@pytest.mark.usefixtures("clean_surroundings")
@pytest.mark.parametrize("in_file", [None, '[storage]\ndata_dir = "from-file"\n', "[ingest]\n"])
@pytest.mark.parametrize(
    "variable", [None, "DUEWHEEL_STORAGE__DATA_DIR", "duewheel_storage__DATA_DIR"]
)
@pytest.mark.parametrize("named", [False, True])
def test_single_settings_are_those_in_force(
    in_file: str | None,
    variable: str | None,
    named: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DUEWHEEL_TIMER__TOPICS", "timers")
    if variable:
        monkeypatch.setenv(variable, "from-environment")
    if in_file is not None:
        path = tmp_path / ("other.toml" if named else "duewheel.toml")
        path.write_text(in_file)
        if named:
            monkeypatch.setenv("DUEWHEEL_CONFIG", str(path))
    found = SingleSettings().get("storage", "data_dir") or "duewheel-data"
    assert Path(found) == load().storage.data_dir


@pytest.mark.usefixtures("clean_surroundings")
def test_the_defaults_are_those_of_the_settings() -> None:
    assert StorageSection().data_dir == Path("duewheel-data")
    assert health_command._bounds(SingleSettings()) == ReadyBounds.of(  # noqa: SLF001 - no output
        load(None, {"timer": {"topics": "a"}})
    )


def test_the_command_imports_nothing_heavy() -> None:
    ran = subprocess.run(
        [sys.executable, "-P", "-c", IMPORTED], capture_output=True, text=True, check=True
    )
    assert not {name.partition(".")[0] for name in ran.stdout.split()} & set(HEAVY)
