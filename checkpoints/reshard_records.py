"""Reassigns partitions to another number of shards: the records of each step.

A shard's record (progress.py) has everything about its partitions, so a partition moves with its
part of the record, unchanged. Two steps keep any partition from being in two shards:

    1. `duewheel reshard` takes each shard's transactional id, and writes its newest record back
       *sealed*: no directory may own it, and the process that served it ends
    2. once all shards are sealed, one transaction writes the records of the new shards, without an
       owner: any data directory may own them, with the partitions p mod n = i

An undo restores the old number of shards: it only unseals each record. It compares nothing, so it
also works if settings or topics differ and step 2 is refused.

New shards are sealed first, too, and empty: no directory may begin one in between. A removed shard
stays sealed and empty for ever: a directory that once served it would continue from its outdated
mirror.

Before 1 the command writes a *notice*, a record of its own: a process that is fenced by 1 reads it
and ends. Without the notice a busy process would take its fencing for a doubt, and take the
transactional id back before the command has sealed the record.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.json_fields import MISSHAPEN
from duewheel.checkpoints.progress import NOBODY, Progress, shard_of
from duewheel.errors import RecoveryRefused
from duewheel.schemas.batches import is_retired
from duewheel.schemas.partition_names import partition_name

NOTICE_KEY = b"reshard"


def notice(before: int, after: int, *, done: bool) -> bytes:
    """Makes the notice of a reshard from `before` to `after` shards."""
    return json.dumps({"from": before, "to": after, "done": done}).encode()


def is_unfinished_notice(value: bytes) -> bool:
    """Returns whether a notice is of an unfinished reshard; False if it does not parse."""
    try:
        return json.loads(value)["done"] is False
    except MISSHAPEN:
        return False


def sealed(progress: Progress, shards: int, incarnation: int) -> Progress:
    """Makes the record of a shard that no directory may own until there are `shards` shards."""
    return replace(
        progress, owner=NOBODY, incarnation=incarnation, epoch=progress.epoch + 1, sealed_for=shards
    )


def nothing(like: Progress, shard: int, shards: int, incarnation: int) -> Progress:
    """Makes the record of a shard that does not exist yet, or was removed; `like` is that of any
    other.
    """
    epochs = Epochs((replace(like.epochs.newest, since={}),))
    empty = replace(like, shard=shard, shards=shards, epochs=epochs, partitions={}, held={})
    return sealed(empty, shards, incarnation)


def reassigned(old: Sequence[Progress], shards: int, draw: Callable[[], int]) -> list[Progress]:
    """Makes the records of the new shards from the sealed ones of all shards with partitions.
    `draw` makes an incarnation for each.

    Raises:
        RecoveryRefused: the old shards have different settings for a row's slot; or a partition is
            in two shards; or has held copies; or a new shard would have no partition, or more than
            its record has room for.
    """
    _require_one_history(old)
    _require_none_held(old)
    # Rows left of a deleted topic are in files that no new shard keeps.
    parts = {p: at for record in old for p, at in record.partitions.items() if not is_retired(p[0])}
    epochs = functools.reduce(Epochs.beside, (record.epochs for record in old))
    epoch, assignment_epoch = (
        max(getattr(r, name) for r in old) + 1 for name in ("epoch", "assignment_epoch")
    )
    topic_ids = {topic: i for record in old for topic, i in record.topic_ids.items()}
    # Any new shard may have any waiting copy of a target: new timers queue after the last one.
    charged_ms = Counter[str]()
    for record in old:
        charged_ms |= Counter(record.charged_ms)  # the later turn of each
    records = []
    for shard in range(shards):
        mine = {p: part for p, part in parts.items() if shard_of(p, shards) == shard}
        if not mine:
            raise RecoveryRefused(f"shard {shard} of {shards} would have no partition")
        named = {p for each in epochs.epochs for p in each.since}  # more than have progress
        own_epochs = epochs.without(p for p in named if shard_of(p, shards) != shard)
        records.append(
            Progress(
                shard,
                shards,
                NOBODY,
                draw(),
                epoch,
                own_epochs,
                mine,
                assignment_epoch,
                topic_ids=topic_ids,
                charged_ms=charged_ms,
            )
        )
    for record in records:
        record.require_room()
    return records


def unsealed(old: Sequence[Progress], draw: Callable[[], int]) -> list[Progress]:
    """Makes the records of the old number of shards from the sealed ones, without owner, with
    unchanged partitions. `draw` makes an incarnation for each.
    """
    return [
        replace(
            record,
            owner=NOBODY,
            incarnation=draw(),
            epoch=record.epoch + 1,
            sealed_for=None,
            assignment_epoch=record.assignment_epoch + 1,
        )
        for record in old
    ]


def _require_none_held(old: Sequence[Progress]) -> None:
    """Refuses held copies: another shard would not read them beside the progress of this one."""
    for record in old:
        for partition, held in record.held.items():
            name = partition_name(partition)
            raise RecoveryRefused(
                f"shard {record.shard} holds {held.copies} copies for {name}, which took"
                " no writes when they left: run the shard until the partition has them (create a"
                " deleted topic again for that)"
            )


def _require_one_history(old: Sequence[Progress]) -> None:
    for record in old[1:]:
        changes = old[0].epochs.newest.changes(record.epochs.newest.values)
        if changes:
            raise RecoveryRefused(
                f"shards {old[0].shard} and {record.shard} differ in {', '.join(changes)}: run "
                "`duewheel reconfigure` for each of them first"
            )
        for bare, keyed in ((record, old[0]), (old[0], record)):
            if keyed.epochs.newest.copy_keys and not bare.epochs.newest.copy_keys:
                raise RecoveryRefused(
                    f"shard {bare.shard} has no key for copies, shard {keyed.shard} has one: run "
                    f"`duewheel reconfigure --rotate-key` for shard {bare.shard} first"
                )
        for topic in record.topic_ids.keys() & old[0].topic_ids.keys():
            if record.topic_ids[topic] != old[0].topic_ids[topic]:
                raise RecoveryRefused(
                    f"timer topic {topic!r} was recreated, and not all shards have its new id: "
                    "start them, or accept the loss of the old topic first"
                )
    counted = Counter(partition for record in old for partition in record.partitions)
    twice = sorted(partition_name(partition) for partition, n in counted.items() if n > 1)
    if twice:
        raise RecoveryRefused(f"more than one shard has progress of {', '.join(twice)}")
