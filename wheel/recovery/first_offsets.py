"""From which offsets a start reads Kafka: those of the kept files, else the first pending ones."""

from __future__ import annotations

from collections.abc import Callable

from duewheel.checkpoints.commit_and_close_pages import Commit, HourLengths, Marks
from duewheel.checkpoints.durable_checkpoint import Durable
from duewheel.checkpoints.local_state import Keep
from duewheel.checkpoints.progress import Progress
from duewheel.wheel.slots import WheelConfig

OffsetsAt = Callable[[int], Marks]
"""Returns the first offset of each timer partition whose timestamp is a time, in epoch ms, or
later; it may lack partitions without one."""


def kept_commit(
    keep: Keep, commit: Callable[[], Commit], durable: Callable[[], Durable | None]
) -> Commit | None:
    """Returns the commit page of the kept files; None if no file is kept. Other files are
    not read: they may be damaged.
    """
    if keep is Keep.ALL:
        return commit()
    found = durable() if keep is Keep.DURABLE else None
    if found is None:
        return None
    hours = {h: HourLengths.applied(lengths) for h, lengths in found.hours.items()}
    ids, topics = found.topic_ids, found.topics
    return Commit(found.batch, found.marks, hours, found.placed, ids, topics, found.cancels)


def start_marks(
    kept: Commit | None, config: WheelConfig, progress: Progress, offsets_at: OffsetsAt
) -> Marks:
    """Returns where ingest starts to read each partition."""
    return first_marks(config, progress, offsets_at) if kept is None else kept.marks


def first_marks(config: WheelConfig, progress: Progress, offsets_at: OffsetsAt) -> Marks:
    """Returns for each partition an offset without pending rows below: these are done, or older
    than any pending message can be. Not below the first epoch that is kept: its settings decide the
    outcome of a row.
    """
    epochs = progress.epochs
    reach_ms = epochs.longest_window_ms + config.margin_ms
    slots = {part.delivered_slot for part in progress.partitions.values()}
    offsets = {slot: offsets_at(slot * config.precision_ms - reach_ms) for slot in slots}
    return {
        p: max(
            min(
                part.delivered_mark,
                offsets[part.delivered_slot].get(p, part.delivered_mark),
                part.replied_below,
            ),
            epochs.begins_at(p),
        )
        for p, part in progress.partitions.items()
        if p[0] in progress.topics
    }
