"""The clauses of the rule of recovery, as switches: a broken one must be noticed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Clauses:
    """The clauses of the rule. One that is False is broken, to see whether that is noticed."""

    # what ingest does with a row
    done_rows_are_dropped: bool = True
    pending_rows_below_c_stay_below_the_floor: bool = True
    late_rows_go_above_the_floor: bool = True
    cancel_half_of_done_rows_counts: bool = True
    reschedule_half_of_done_rows_counts: bool = True
    rows_closed_meanwhile_move: bool = True
    rows_move_with_those_of_their_new_slot: bool = True
    rows_read_again_do_not_move: bool = True
    not_before_counts_in_the_slot: bool = True
    ring_is_never_overwritten: bool = True
    full_ring_stops_the_partition: bool = True
    # what dequeue does
    closes_when_all_is_delivered: bool = True
    lower_end_keeps_its_own_c: bool = True
    committed_is_a_prefix: bool = True
    waits_for_the_marks: bool = True
    waits_for_the_files: bool = True
    asks_whose_shard_it_is: bool = True
    # what it does with cancels
    tombstones_are_in_the_progress: bool = True
    tombstone_mark_waits_for_the_marks: bool = True
    tombstone_mark_is_lowered_where_c_is_raised: bool = True
    tombstone_is_known_before_its_c_is_told: bool = True
    tombstone_takes_the_place_of_no_other: bool = True
    tombstone_stays_until_its_rows_have_left: bool = True
    copy_brings_its_cancel_again: bool = True
    cancel_brought_again_is_not_answered: bool = True
    forgotten_cancel_is_read_again_until_it_is_settled: bool = True
    forgotten_cancel_stays_on_disk_until_it_is_settled: bool = True
    cancels_are_settled_by_the_marks_of_a_closing: bool = True
    cancel_is_answered_with_its_c: bool = True
    cancel_is_answered_once: bool = True
    unanswered_cancel_is_read_again: bool = True
    verdict_waits_until_settled: bool = True
    left_out_is_not_delivered: bool = True
    what_left_before_is_told: bool = True
    cancels_of_before_may_have_left_out_anything: bool = True
    cancel_stays_with_what_it_has_left_out: bool = True
    # what a start keeps, and where it goes on
    lost_page_cache_is_noticed: bool = True
    durable_close_page_is_of_its_marks: bool = True
    durable_goes_before_the_files: bool = True
    pending_recovery_is_finished: bool = True
    pending_recovery_keeps_the_lesser: bool = True
    other_lineage_is_dropped: bool = True
    lineage_is_never_used_twice: bool = True
    lineage_is_new_at_each_start: bool = True
    running_ingest_sees_the_generation: bool = True
    floor_is_that_of_the_close_page: bool = True
    floor_of_what_is_kept_counts: bool = True
    half_slot_keeps_its_c: bool = True
    half_slot_goes_on_at_d: bool = True
    reading_starts_at_c: bool = True
    reading_starts_a_window_before_r: bool = True
    # standby, shards, slot configuration
    standby_takes_only_rows_below_c: bool = True
    standby_rows_do_not_move: bool = True
    standby_begins_with_nothing: bool = True
    moved_partition_keeps_its_progress: bool = True
    floor_of_a_shard_is_its_highest: bool = True
    partitions_apart_stay_apart: bool = True
    standby_is_of_the_same_deal: bool = True
    row_is_judged_by_the_epoch_of_its_offset: bool = True
    epoch_begins_above_c: bool = True
    reading_starts_by_the_longest_window: bool = True


def clause_names() -> list[str]:
    """Of all clauses."""
    return [each.name for each in fields(Clauses)]


def broken(clause: str) -> Clauses:
    """All clauses hold but one."""
    return replace(Clauses(), **{clause: False})
