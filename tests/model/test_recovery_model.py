"""The rule of recovery holds in the model, and each of its clauses is needed.

Many seeds: `make model SEEDS=20000`.
"""

from __future__ import annotations

import pytest
from tests.model.clauses import Clauses, broken, clause_names
from tests.model.run import violation

SEEDS = 300

# Clauses that matter in rare events only: the theme in which they are met, and from which seed on.
MET = {
    "cancels_are_settled_by_the_marks_of_a_closing": ("losses", 1700),
    "cancel_stays_with_what_it_has_left_out": ("kills", 0),
    "copy_brings_its_cancel_again": ("copies", 0),
    "durable_close_page_is_of_its_marks": ("kills", 0),
    "durable_goes_before_the_files": ("disks", 800),
    "epoch_begins_above_c": ("windows", 0),
    "forgotten_cancel_is_read_again_until_it_is_settled": ("copies", 0),
    "forgotten_cancel_stays_on_disk_until_it_is_settled": ("copies", 0),
    "floor_is_that_of_the_close_page": ("kills", 0),
    "floor_of_a_shard_is_its_highest": ("shards", 1000),
    "floor_of_what_is_kept_counts": ("kills", 0),
    "lineage_is_never_used_twice": ("old disks", 0),
    "lineage_is_new_at_each_start": ("old disks", 0),
    "partitions_apart_stay_apart": ("shards apart", 0),
    "other_lineage_is_dropped": ("old disks", 0),
    "pending_recovery_keeps_the_lesser": ("disks", 500),
    "reading_starts_by_the_longest_window": ("windows", 0),
    "reschedule_half_of_done_rows_counts": ("losses", 0),
    "standby_begins_with_nothing": ("standby", 0),
    "standby_is_of_the_same_deal": ("shards and standbys", 0),
    "standby_rows_do_not_move": ("standby without power", 0),
    "standby_takes_only_rows_below_c": ("standby", 0),
    "tombstone_mark_waits_for_the_marks": ("losses", 200),
    "verdict_waits_until_settled": ("outages", 0),
    "tombstones_are_in_the_progress": ("losses", 0),
}


def test_nothing_is_lost_doubled_early_or_out_of_order() -> None:
    found = {seed: violation(seed, Clauses()) for seed in range(SEEDS)}
    assert {seed: what for seed, what in found.items() if what is not None} == {}


@pytest.mark.parametrize("clause", clause_names())
def test_a_broken_clause_is_noticed(clause: str) -> None:
    theme, first = MET.get(clause, (None, 0))
    seeds = range(first, first + SEEDS)
    assert any(violation(seed, broken(clause), theme) is not None for seed in seeds)
