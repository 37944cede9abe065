"""Recoveries, end to end on real files: after any loss every timer leaves exactly once."""

from __future__ import annotations

import functools
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.harness.local_world import NOW_MS, PRECISION_MS
from tests.harness.recovery_world import PARTITIONS, RecoveryWorld, half_delivered
from tests.harness.state_pages import COMMIT
from tests.harness.timelines import FILE, KIND, spoil_timeline, timeline
from tests.harness.timer_rows import TIMER_TOPIC
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.errors import RecoveryPending
from duewheel.wheel.recovery.rebuild import apply_recovery
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timelines.kinds import remove_timelines

MakeWorld = Callable[..., RecoveryWorld]


@pytest.fixture
def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeWorld:
    return functools.partial(RecoveryWorld, tmp_path, monkeypatch)


def fall_back(world: RecoveryWorld) -> None:
    """A slot is half delivered, and the files are those of a checkpoint before that."""
    world.write(0, 1, 5, 5, 5, 900)
    world.ingest()
    world.at_slot(2)
    disk = world.checkpoint()
    half_delivered(world)
    world.become(disk)


def lose_power_behind_a_checkpoint(world: RecoveryWorld) -> None:
    """The host boots anew, and the disk has even what was committed behind the checkpoint."""
    world.write(0, 1, 5, 900)
    world.ingest()
    world.at_slot(2)
    world.checkpoint()
    world.write(0, 300, 5)
    world.write(1, 300, 301)
    world.ingest()
    world.kill()
    world.boot = str(uuid.uuid4())


def test_a_lost_directory_is_read_again(make_world: MakeWorld) -> None:
    world = make_world()
    half_delivered(world)
    world.kill()
    shutil.rmtree(world.path)
    with pytest.raises(RecoveryPending, match=r"this one is .*--take-over"):
        world.start()  # its owner may be alive
    world.kill()
    world.publisher.silent_ms = 61_000
    assert world.start() == "taken over"
    # Nothing is closed or delivered before all that was there is there again.
    delivered = world.publisher.sources()
    world.at_slot(7)
    world.ingest(rows=2)
    world.at_slot(8)
    assert world.publisher.sources() == delivered
    world.finish()


def test_a_directory_that_is_lost_again_and_again_is_read_again(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=1)
    half_delivered(world)
    world.publisher.silent_ms = 61_000
    for slot in range(6, 12):
        world.kill()
        shutil.rmtree(world.path)
        assert world.start() == "taken over"
        world.ingest()
        # What was put back must be where the progress believes it to be.
        world.at_slot(slot, ticks=1)
    world.finish()


def test_after_a_loss_of_power_the_durable_checkpoint_is_kept(make_world: MakeWorld) -> None:
    world = make_world()
    fall_back(world)
    # Bytes that were not synced may be there or not.
    for folder in ("timerlog", "messages"):
        for path in (world.path / folder).iterdir():
            with path.open("ab") as file:
                file.write(Random(1).randbytes(1000))
    spoil_timeline(world.path)
    with (world.path / "topics").open("ab") as file:
        file.write(b"\0\0\0\n\0\0\n")
    world.boot = str(uuid.uuid4())
    assert world.start() == "power lost"
    state = State.open(world.path)
    assert (state.recovered, state.needs_recovery) == (2, False)
    world.finish()


def test_entries_of_batches_that_are_not_kept_lead_nowhere(make_world: MakeWorld) -> None:
    world = make_world()
    lose_power_behind_a_checkpoint(world)
    assert world.start() == "power lost"
    world.finish()


def test_a_damaged_commit_page_brings_back_no_batch_that_was_not_kept(
    make_world: MakeWorld,
) -> None:
    """Its rows lie behind what was kept, still uncut: the wheel is rebuilt without them."""
    world = make_world()
    lose_power_behind_a_checkpoint(world)
    world.shard.start_dequeue()
    directory = DataDirectory.start(world.path, world.wheel, Role.INGEST)
    record = RecoveryRecord.read(world.path)
    assert record is not None
    assert apply_recovery(directory, record, world.shard.offsets_at) is not None
    newest = b'{"batch":%d,' % directory.state.commit().batch
    directory.close()
    world.kill()
    path = world.path / "state"
    whole = path.read_bytes()
    assert whole.count(newest) == 1
    path.write_bytes(whole.replace(newest, b"damaged".ljust(len(newest))))
    case = world.start()
    world.finish()
    assert case == "power lost"


def test_hours_that_were_given_up_by_damage_take_timers_again(make_world: MakeWorld) -> None:
    world = make_world()
    half_delivered(world)
    world.kill()
    with State.open(world.path) as state:
        state.live.set_gc_hour(hour_of(NOW_MS // PRECISION_MS, PRECISION_MS) + 2)
    assert world.start() == "files lost"
    world.finish()


@pytest.mark.parametrize("spoiled", ["durable", "timerlog", "messages", "state pages"])
def test_what_cannot_be_kept_is_read_again(make_world: MakeWorld, spoiled: str) -> None:
    world = make_world()
    fall_back(world)
    world.boot = str(uuid.uuid4())
    path = world.path / spoiled
    if spoiled == "state pages":
        path = world.path / "state"
        text = path.read_bytes()
        path.write_bytes(text[:COMMIT] + b"\1" * (len(text) - COMMIT))
    else:
        path = max(path.iterdir()) if path.is_dir() else path
        text = path.read_bytes()
        path.write_bytes(text[:-60] + bytes([text[-60] ^ 1]) + text[-59:])
    case = world.start()
    assert case == ("files lost" if spoiled == "durable" else "power lost")
    world.finish()


def test_an_assertion_about_kept_files_leads_to_reading_again(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each start would end with it."""
    world = make_world()
    fall_back(world)
    world.boot = str(uuid.uuid4())

    def unsound(*_: object) -> None:
        raise AssertionError("damage that no check refuses")

    with monkeypatch.context() as patched:
        patched.setattr(timeline(), "link", unsound)
        assert world.start() == "power lost"
    world.finish()


@pytest.mark.parametrize("lost", [FILE, "timerlog", "messages", "topics", "state"])
def test_a_lost_file_leads_to_reading_again(make_world: MakeWorld, lost: str) -> None:
    world = make_world()
    half_delivered(world)
    world.kill()
    path = world.path / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if lost == "state":
        world.publisher.silent_ms = 61_000
    assert world.start() == ("taken over" if lost == "state" else "files lost")
    world.finish()


def test_damaged_topic_names_lead_to_reading_again(make_world: MakeWorld) -> None:
    world = make_world()
    half_delivered(world)
    world.kill()
    path = world.path / "topics"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert world.start() == "files lost"
    world.finish()


def test_an_old_copy_is_completed(make_world: MakeWorld) -> None:
    world = make_world()
    fall_back(world)
    assert world.start() == "old copy"
    world.finish()


def test_two_copies_that_have_parted_are_told_apart(make_world: MakeWorld) -> None:
    world = make_world()
    half_delivered(world)
    backup = world.checkpoint()
    world.kill()
    world.start()
    world.ingest()
    world.at_slot(6)
    original = world.path.with_name("original")
    world.kill()
    shutil.copytree(world.path, original)
    # The copy knows nothing of the last start.
    world.become(backup)
    with pytest.raises(RecoveryPending, match="another copy of the data directory"):
        world.start()
    world.kill()
    world.publisher.silent_ms = 61_000
    assert world.start() == "taken over"
    world.write(0, 9)
    world.ingest()
    world.at_slot(8)
    # Nor does the original of the copy's.
    world.become(original)
    assert world.start() == "taken over"
    world.finish()


@pytest.mark.parametrize(
    ("case", "step"),
    [
        *(("files lost", step) for step in ("remove", "clear", "write_commit", "set_recovered")),
        *(("power lost", step) for step in ("clear", "link", "write_commit", "set_recovered")),
    ],
)
def test_a_recovery_that_was_killed_is_done_again(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, case: str, step: str
) -> None:
    world = make_world()
    if case == "power lost":
        lose_power_behind_a_checkpoint(world)
    else:
        world.checkpoint()
        half_delivered(world)
        world.kill()
        shutil.rmtree(world.path / "messages")

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    owners: dict[str, object] = {
        "remove": FileSystem,
        "clear": timeline(),
        "link": timeline(),
        "write_commit": State,
        "set_recovered": State,
    }
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(owners[step], step, die)
            with pytest.raises(KeyboardInterrupt):
                world.start()
        world.kill()
    assert world.start() == case
    world.finish()


def test_a_running_ingest_stops_for_a_recovery(make_world: MakeWorld) -> None:
    world = make_world()
    half_delivered(world)
    world.shard.kill(Role.DEQUEUE)
    State.open(world.path).note_damage(State.open(world.path).damage.FILES_LOST)
    world.shard.start_dequeue()
    with pytest.raises(RecoveryPending):
        world.ingest()
    world.shard.kill(Role.INGEST)
    world.shard.start_ingest()
    world.finish()


def test_rows_beyond_the_ring_come_again_in_a_catch_up(make_world: MakeWorld) -> None:
    world = make_world()
    world.write(0, 1, 2)
    world.write(1, 3, 4)
    world.ingest()
    world.at_slot(1)
    world.kill()
    shutil.rmtree(world.path)
    # More than a lap later: a new timer is too far from what is delivered.
    world.clock.set(NOW_MS + 3 * world.wheel.ring * PRECISION_MS)
    world.write(0, 3 * world.wheel.ring + 1, 3 * world.wheel.ring + 2)
    world.write(1, 3)
    world.start(take_over=True)
    assert world.shard.ingest is not None
    timers = world.kafka
    marks = {(TIMER_TOPIC, 0): 4, (TIMER_TOPIC, 1): 3}
    assert world.shard.append([*timers[0], *timers[1]], marks).rows == 6
    assert world.shard.ingest.marks == marks
    for slot in range(3 * world.wheel.ring, 3 * world.wheel.ring + 10):
        world.ingest()
        world.at_slot(slot)
    world.finish()


def test_the_local_progress_counts_when_the_state_topic_is_gone(make_world: MakeWorld) -> None:
    world = make_world()
    half_delivered(world)
    world.kill()
    delivered = [(d, p) for d, p in world.publisher.committed if d is not None]
    world.publisher.committed.clear()
    assert world.start() == "intact"
    world.publisher.committed[:0] = delivered
    world.finish()


def copy_of(world: RecoveryWorld) -> TimerShard:
    """A second shard on a copy of the directory, whose processes live."""
    path = world.path.with_name("copy")
    shutil.copytree(world.path, path)
    return world.beside(path)


def turn(world: RecoveryWorld, shard: TimerShard, slot: int) -> None:
    """Another shard's ingest takes everything; its dequeue closes and delivers up to `slot`."""
    if shard.ingest is not None:
        known = shard.ingest.marks
        ends = {(TIMER_TOPIC, p): len(timers) for p, timers in world.kafka.items()}
        rows = [t for p, ts in world.kafka.items() for t in ts[known[TIMER_TOPIC, p] :]]
        shard.append(rows, ends)
    world.clock.set(NOW_MS + slot * PRECISION_MS)
    while shard.dequeue is not None and shard.dequeue.tick():
        pass


def test_a_copy_that_took_rows_under_a_claim_that_nobody_saw(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.write(0, 1, 2, 300)
    world.write(1, 2)
    world.ingest()
    world.at_slot(50)
    copy = copy_of(world)

    def die() -> str:
        raise KeyboardInterrupt

    fate, world.publisher.fate = world.publisher.fate, die
    with pytest.raises(KeyboardInterrupt):
        copy.start_dequeue()
    world.publisher.fate = fate
    copy.start_ingest()  # which saw what dequeue had decided while that lived
    copy.kill(Role.DEQUEUE)
    world.write(0, 100)
    turn(world, copy, 50)  # the copy has it in slot 100
    world.at_slot(105)
    world.ingest()  # the original in slot 106
    world.kill()
    copy.kill(Role.INGEST)
    copy.start_dequeue()
    copy.start_ingest()
    for _ in range(3):
        turn(world, copy, 5_000)
    counted = Counter(world.publisher.sources())
    for role in Role:
        copy.kill(role)
    everything = {timer.source.encode() for timers in world.kafka.values() for timer in timers}
    assert counted == Counter(everything)


def test_damage_in_the_middle_of_a_recovery_leads_to_another(make_world: MakeWorld) -> None:
    world = make_world()
    half_delivered(world)
    world.kill()
    shutil.rmtree(world.path)
    world.publisher.silent_ms = 61_000
    world.start()
    world.shard.kill(Role.INGEST)
    remove_timelines(world.path, [KIND], HOST_FS)
    with pytest.raises(RecoveryPending):
        world.shard.start_ingest()
    world.shard.kill(Role.INGEST)
    with pytest.raises(RecoveryPending):
        world.at_slot(7)
    world.shard.kill(Role.DEQUEUE)
    assert world.start() == "files lost"
    world.finish()


def test_a_boot_takes_nothing_from_an_empty_directory(make_world: MakeWorld) -> None:
    world = make_world()
    half_delivered(world)
    world.kill()
    shutil.rmtree(world.path)
    with pytest.raises(RecoveryPending):
        world.start()
    world.kill()
    world.boot = str(uuid.uuid4())
    world.publisher.silent_ms = 61_000
    assert world.start() == "taken over"
    world.finish()


def lose(world: RecoveryWorld, how: str, disks: list[Path]) -> None:
    """One loss, and the start after it."""
    if how == "kill":
        world.kill()
    elif how == "directory":
        world.kill()
        shutil.rmtree(world.path)
    elif how == "boot":  # which by chance has taken nothing
        world.kill()
        world.boot = str(uuid.uuid4())
    elif disks:
        world.become(disks[-1])
        if how == "power":
            world.boot = str(uuid.uuid4())
    else:
        return
    world.start(take_over=True)


@pytest.mark.parametrize("seed", range(12))
def test_any_loss_in_any_order(make_world: MakeWorld, seed: int) -> None:
    chance = Random(seed)
    world = make_world(chunk_records=chance.choice([1, 2, 5]))
    slot = 0
    disks: list[Path] = []
    for _ in range(25):
        step = chance.choice("wwwiiitttclll")
        if step == "w":
            due = slot + chance.randint(0, 6)
            world.write(chance.randrange(PARTITIONS), due, due, slot + 20)
        elif step == "i":
            world.ingest(chance.randint(1, 4))
        elif step == "t":
            slot += chance.choice([0, 1, 4])
            world.at_slot(slot, ticks=chance.randint(1, 3))
        elif step == "c":
            disks = [world.checkpoint()]
        else:
            lose(world, chance.choice(["kill", "directory", "power", "boot", "backup"]), disks)
    world.finish()
