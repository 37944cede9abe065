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
    # which rows a cancel flags
    cancel_meets_rows_of_its_batch: bool = True
    first_offsets_are_compared: bool = True
    chase_is_for_what_its_cancel_was_for: bool = True
    cancel_of_a_done_row_counts: bool = True
    cancel_flags_open_slots_only: bool = True
    floor_is_read_under_the_lock: bool = True
    cancel_below_c_flags_all_above_r: bool = True
    standby_flags_all_above_r: bool = True
    answered_cancel_flags_when_read_again: bool = True
    # what is found out about a cancel
    undecided_cancel_is_chased: bool = True
    undecided_cancel_is_chased_whatever_it_has_found: bool = True
    last_copy_decides: bool = True
    blind_cancel_is_chased: bool = True
    blind_is_raised_at_a_start: bool = True
    blind_is_raised_where_progress_is_newer_than_its_mirror: bool = True
    blind_is_raised_before_hours_go: bool = True
    blind_is_boundless_until_it_is_known: bool = True
    since_is_raised_at_a_start: bool = True
    row_flagged_before_does_not_count: bool = True
    chase_carries_what_was_found: bool = True
    request_below_blind_is_unknown: bool = True
    newest_timer_decides: bool = True
    cancelled_timer_is_not_called_delivered: bool = True
    cancelled_timer_below_blind_may_not_be_the_newest: bool = True
    # segments, lists and flags on disk
    segment_is_written_before_the_marks: bool = True
    segment_stays_until_it_is_answered: bool = True
    list_is_written_before_the_marks: bool = True
    lists_are_synced_with_the_checkpoint: bool = True
    flags_are_redone: bool = True
    flags_are_made_again_from_the_lists: bool = True
    # what dequeue does with cancels
    flagged_rows_are_not_delivered: bool = True
    flagged_rows_are_not_rolled: bool = True
    flagged_rows_are_not_parked: bool = True
    answer_waits_for_c: bool = True
    answers_go_in_order: bool = True
    a_goes_with_the_answer: bool = True
    a_waits_for_the_marks: bool = True
    cancel_is_answered_once: bool = True
    g_is_r_of_the_transaction: bool = True
    # of a recurring timer
    successor_goes_with_its_firing: bool = True
    seed_fires_nothing: bool = True
    successor_does_not_wait_for_the_target: bool = True
    # while a partition takes no writes
    later_copies_go_behind_held_ones: bool = True
    held_copies_go_in_order: bool = True
    blind_waits_for_held_copies: bool = True
    partition_of_held_copies_stays: bool = True
    # when a loss in Kafka is accepted
    cut_waits_for_rows_flagged_from_behind_it: bool = True
    cut_lowers_a: bool = True
    cut_counts_as_a_start: bool = True
    # what a start keeps, and where it goes on
    lost_page_cache_is_noticed: bool = True
    durable_close_page_is_of_its_marks: bool = True
    durable_goes_before_the_files: bool = True
    pending_recovery_is_finished: bool = True
    pending_recovery_keeps_the_lesser: bool = True
    other_incarnation_is_dropped: bool = True
    incarnation_is_never_used_twice: bool = True
    incarnation_is_new_at_each_start: bool = True
    running_ingest_sees_the_generation: bool = True
    floor_is_that_of_the_close_page: bool = True
    floor_of_what_is_kept_counts: bool = True
    half_slot_keeps_its_c: bool = True
    half_slot_goes_on_at_d: bool = True
    reading_starts_at_c: bool = True
    reading_starts_a_window_before_r: bool = True
    reading_starts_at_a: bool = True
    # standby, shards, slot configuration
    standby_takes_only_rows_below_c: bool = True
    standby_rows_do_not_move: bool = True
    standby_begins_with_nothing: bool = True
    moved_partition_keeps_its_progress: bool = True
    floor_of_a_shard_is_its_highest: bool = True
    partitions_apart_stay_apart: bool = True
    standby_is_of_the_same_assignment: bool = True
    row_is_judged_by_the_epoch_of_its_offset: bool = True
    epoch_begins_above_c: bool = True
    reading_starts_by_the_longest_window: bool = True


def clause_names() -> list[str]:
    """Of all clauses."""
    return [each.name for each in fields(Clauses)]


def broken(clause: str) -> Clauses:
    """All clauses hold but one."""
    return replace(Clauses(), **{clause: False})
