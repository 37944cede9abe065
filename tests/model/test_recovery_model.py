"""The rule of recovery holds in the model, and each of its clauses is needed.

Many seeds: `make model SEEDS=20000`.
"""

from __future__ import annotations

import pytest
from tests.model.clauses import Clauses, broken, clause_names
from tests.model.kafka_model import Kind, Record, Word
from tests.model.run import violation
from tests.model.world import World

SEEDS = 300

# Clauses that matter in rare events only: the theme in which they are met, and from which seed on.
MET: dict[str, tuple[str | None, int]] = {
    "blind_is_raised_before_hours_go": ("outages", 0),
    "blind_is_raised_where_progress_is_newer_than_its_mirror": (None, 4_471_094_700),
    "cancelled_timer_below_blind_may_not_be_the_newest": ("outages", 400),
    "cut_counts_as_a_start": ("cuts", 700),
    "cut_lowers_a": ("cuts", 0),
    "cut_waits_for_rows_flagged_from_behind_it": ("cuts", 3100),
    "durable_close_page_is_of_its_marks": ("kills", 0),
    "durable_goes_before_the_files": ("disks", 900),
    "epoch_begins_above_c": ("windows", 0),
    "floor_is_that_of_the_close_page": ("kills", 0),
    "floor_of_a_shard_is_its_highest": ("shards", 0),
    "floor_of_what_is_kept_counts": ("kills", 0),
    "blind_waits_for_held_copies": ("leaders", 900),
    "held_copies_go_in_order": ("leaders", 500),
    "later_copies_go_behind_held_ones": ("leaders", 500),
    "partition_of_held_copies_stays": ("leaders and shards", 0),
    "incarnation_is_never_used_twice": ("old disks", 0),
    "incarnation_is_new_at_each_start": ("old disks", 0),
    "other_incarnation_is_dropped": ("old disks", 0),
    "partitions_apart_stay_apart": ("shards apart", 450),
    "pending_recovery_keeps_the_lesser": ("disks", 4400),
    "reading_starts_by_the_longest_window": ("windows", 0),
    "request_below_blind_is_unknown": (None, 20_002_300),
    "since_is_raised_at_a_start": ("kills", 1400),
    "standby_begins_with_nothing": ("standby", 0),
    "standby_flags_all_above_r": ("standby", 150),
    "standby_is_of_the_same_assignment": ("shards and standbys", 700),
    "standby_rows_do_not_move": ("standby without power", 0),
    "standby_takes_only_rows_below_c": ("standby", 0),
}


# Clauses of recurring timers, which are in no other run.
RECURRING = {
    "successor_goes_with_its_firing",
    "seed_fires_nothing",
    "successor_does_not_wait_for_the_target",
}


@pytest.mark.parametrize("recurring", [False, True])
def test_nothing_is_lost_doubled_early_or_out_of_order(*, recurring: bool) -> None:
    found = {seed: violation(seed, Clauses(), recurring=recurring) for seed in range(SEEDS)}
    assert {seed: what for seed, what in found.items() if what is not None} == {}


@pytest.mark.crash_matrix
@pytest.mark.parametrize("clause", clause_names())
def test_a_broken_clause_is_noticed(clause: str) -> None:
    theme, first = MET.get(clause, (None, 0))
    seeds = range(first, first + SEEDS)
    recurring = clause in RECURRING
    found = (violation(seed, broken(clause), theme, recurring=recurring) for seed in seeds)
    assert any(what is not None for what in found)


def _running_world() -> World:
    """One without faults, whose log ends are known."""
    world = World(0, Clauses())
    world.kafka.topic[0].append(Record(Kind.TIMER, 1, 1, timestamp=0, due=0))
    world.settle()
    return world


def _ask(world: World, kind: Kind, due: int, message: int) -> int:
    """Write for the timer 7; returns the offset."""
    topic = world.kafka.topic[0]
    topic.append(Record(kind, 7, message, timestamp=world.now, due=world.now + due))
    return len(topic) - 1


def test_a_replaced_timer_does_not_make_cancelled_true() -> None:
    world = _running_world()
    _ask(world, Kind.TIMER, 8, 2)
    moved = _ask(world, Kind.RESCHEDULE, 1, 3)
    world.settle()
    cancel = _ask(world, Kind.CANCEL, 0, -1)
    world.settle()
    assert world.judge.words[0, moved] is Word.CANCELLED
    assert world.judge.words[0, cancel] is Word.ALREADY_DELIVERED


def test_a_cancelled_timer_is_so_however_often_it_is_asked_for() -> None:
    world = _running_world()
    _ask(world, Kind.TIMER, 8, 2)
    asked = [_ask(world, Kind.CANCEL, 0, -1) for _ in range(2)]
    world.settle()
    assert [world.judge.words[0, offset] for offset in asked] == [Word.CANCELLED] * 2
