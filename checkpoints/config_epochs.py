"""Settings epochs: the settings under which each row of the timer topics is parsed and placed.

Settings that decide a row's slot, and whether it is accepted, may change; a row that was taken must
keep its slot. So the progress has *epochs*, oldest first. A row that is read again after a loss is
parsed under the epoch of its offset, as it was at first.

    values     the settings, plain JSON (schemas/request/parser.py), with precision and roll window
    since      the first offset of each partition from which they hold
    copy_keys  the keys of the MACs of copies (copy_keys.py)

- A row belongs to the newest epoch that begins at or below its offset. A partition that `since`
  does not name was added later: it begins with that epoch, at offset 0.
- Below the oldest epoch nothing is pending, and no recovery reads: earlier epochs were dropped.
- Beside the epochs are the offsets that the operator has skipped: each is a dead letter at every
  read. They are dropped when no recovery reads that far back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from duewheel.checkpoints import copy_keys
from duewheel.checkpoints.commit_and_close_pages import Marks, marks_from, marks_to
from duewheel.checkpoints.json_fields import integer, name
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import TopicPartition

PRECISION = "precision_ms"
WINDOW = "roll_window_ms"
ROLL_SPREAD = "roll_spread"
BY_OFFSET = "offset"  # else by id, as the first versions did (wheel/roll_rule.py)
SUITE = "suite"
TOPICS, DEFAULT_TOPIC, TARGETS = "topics", "topics_default", "targets"


@dataclass(frozen=True, slots=True)
class Epoch:
    """Settings, and the offsets from which they hold; fields as in the module's head."""

    values: Mapping[str, Any]
    since: Marks = field(default_factory=dict)
    copy_keys: tuple[str, ...] = ()  # none: an older version has begun the shard

    @property
    def signing_key(self) -> bytes:
        """The key for new copies; empty: there is none."""
        return copy_keys.signing_key(self.copy_keys)

    @property
    def window_ms(self) -> int:
        return int(self.values[WINDOW])

    @property
    def rolls_by_offset(self) -> bool:
        return self.values.get(ROLL_SPREAD) == BY_OFFSET

    def judges_as(self, other: Epoch) -> bool:
        """Whether both have the same settings, and either both or neither have keys of copies."""
        return bool(self.copy_keys) == bool(other.copy_keys) and not self.changes(other.values)

    def changes(self, values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Compares with `values`: the old and the new value of each changed key, None if missing.
        Each key of a table is compared by itself: "parameters.max_delay_ms".
        """
        ours, theirs = dict(_flattened(self.values)), dict(_flattened(values))
        pairs = {key: (ours.get(key), theirs.get(key)) for key in sorted(ours.keys() | theirs)}
        return {key: (old, new) for key, (old, new) in pairs.items() if old != new}


def digest(values: Mapping[str, Any]) -> int:
    """Returns a positive number of 63 bits that stands for these settings, of this version."""
    text = json.dumps(values, sort_keys=True).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1 | 1


def _flattened(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if key == SUITE:
            continue  # `rules` has the rules; the suite only has the texts of their refusals
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", each) for name, each in value.items())
        else:
            yield key, value


@dataclass(frozen=True)
class Epochs:
    """All epochs of a shard, oldest first; at least one."""

    epochs: tuple[Epoch, ...]
    # offsets of records that are not parsed, rising, by partition
    skipped: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.epochs:
            raise ValueError("there is no epoch")

    @classmethod
    def first(cls, values: Mapping[str, Any]) -> Epochs:
        """Makes the epochs of a shard whose settings have never changed, without keys of copies."""
        return cls((Epoch(values),))

    def __len__(self) -> int:
        return len(self.epochs)

    @property
    def newest(self) -> Epoch:
        return self.epochs[-1]

    @property
    def longest_window_ms(self) -> int:
        """The longest roll window: no pending row may have waited longer."""
        return max(epoch.window_ms for epoch in self.epochs)

    def begins_at(self, partition: TopicPartition) -> int:
        """Returns the offset of the partition below which nothing is pending."""
        return self.epochs[0].since.get(partition, 0)

    def of_rows(
        self, partitions: Sequence[TopicPartition], partition: Int32, offset: Int64
    ) -> Int32:
        """Returns the index of each row's epoch; `partition` indexes `partitions`."""
        index = np.zeros(len(offset), np.int32)
        for number, epoch in enumerate(self.epochs[1:], 1):
            since = np.array([epoch.since.get(p, 0) for p in partitions], np.int64)
            index[offset >= since[partition]] = number
        return index

    def windows_ms(
        self, partitions: Sequence[TopicPartition], partition: Int32, offset: Int64
    ) -> int | Int64:
        """Returns the roll window of each row, or the one of all."""
        windows_ms = np.array([epoch.window_ms for epoch in self.epochs], np.int64)
        of_row: int | Int64 = self._values_of_rows(windows_ms, partitions, partition, offset)
        return of_row

    def rolls_by_offset(
        self, partitions: Sequence[TopicPartition], partition: Int32, offset: Int64
    ) -> bool | Bool:
        """Returns whether the roll of each row is spread by its offset, or whether all are."""
        by_offset = np.array([epoch.rolls_by_offset for epoch in self.epochs], np.bool_)
        of_row: bool | Bool = self._values_of_rows(by_offset, partitions, partition, offset)
        return of_row

    def _values_of_rows(
        self,
        values: npt.NDArray[Any],
        partitions: Sequence[TopicPartition],
        partition: Int32,
        offset: Int64,
    ) -> Any:
        """Returns the value of each row's epoch, or the one value if all epochs have the same."""
        if (values == values[-1]).all():
            return values[-1].item()
        return values[self.of_rows(partitions, partition, offset)]

    def extended_by(self, values: Mapping[str, Any], since: Marks) -> Epochs:
        """Returns these epochs and another one with the newest keys, from these offsets on; but not
        from before the keys were drawn: a copy from there, signed by a former key, would count as
        forged.
        """
        keys, drawn_at = self.newest.copy_keys, self._newest_keys_since()
        since = {p: max(offset, drawn_at.get(p, 0)) for p, offset in since.items()}
        return replace(self, epochs=(*self.epochs, Epoch(values, since, keys)))

    def _newest_keys_since(self) -> Marks:
        """Returns where the first epoch with the newest keys begins; nothing: all have them."""
        drawn_at: Marks = {}
        for before, epoch in pairwise(self.epochs):
            if before.copy_keys != epoch.copy_keys:
                drawn_at = epoch.since
        return drawn_at

    def drawing_key(self, draw: Callable[[int], int]) -> Epochs:
        """Returns these epochs, the keys of copies in the newest one rotated; see
        `copy_keys.rotated`.
        """
        newest = replace(self.newest, copy_keys=copy_keys.rotated(self.newest.copy_keys, draw))
        return replace(self, epochs=(*self.epochs[:-1], newest))

    def skipping(self, named: Iterable[tuple[TopicPartition, int]]) -> Epochs:
        """Returns these epochs, with more skipped records."""
        offsets = {p: set(offsets) for p, offsets in self.skipped.items()}
        for partition, offset in named:
            offsets.setdefault(partition, set()).add(offset)
        return replace(self, skipped={p: tuple(sorted(each)) for p, each in offsets.items()})

    def reaching(self, lowest: Marks) -> Epochs:
        """Drops the epochs without a row at or above `lowest`, the offsets from which a recovery
        would read. A partition that is missing there has no progress yet: a recovery would read it
        from its beginning.
        """
        kept = list(self.epochs)
        while len(kept) > 1 and all(o <= lowest.get(p, 0) for p, o in kept[1].since.items()):
            del kept[0]
        return replace(self, epochs=tuple(kept))._keeping(lambda p, o: o >= lowest.get(p, 0))

    def _keeping(self, kept: Callable[[TopicPartition, int], bool]) -> Epochs:
        """Returns these epochs with only some of the skipped records."""
        left = {p: tuple(o for o in offsets if kept(p, o)) for p, offsets in self.skipped.items()}
        return replace(self, skipped={p: offsets for p, offsets in left.items() if offsets})

    def beside(self, other: Epochs) -> Epochs:
        """Merges the epochs of two shards with the same present settings.

        An epoch of only one shard is empty for the partitions of the other: it begins and ends
        where their own next epoch begins, so no row belongs to it. Epochs with and without keys of
        copies stay two: unsigned copies count only in the latter.
        """
        ours, theirs = list(self.epochs), list(other.epochs)
        merged: list[Epoch] = []
        next_ours: Marks = {}
        next_theirs: Marks = {}
        while ours or theirs:
            epoch = ours[-1] if ours else theirs[-1]
            keys = epoch.copy_keys
            if ours:
                next_ours = ours.pop().since
            if theirs and epoch.judges_as(theirs[-1]):
                keys = copy_keys.merged(keys, theirs[-1].copy_keys)
                next_theirs = theirs.pop().since
            since = {**next_ours, **next_theirs}
            merged.insert(0, replace(epoch, since=since, copy_keys=keys))
        return Epochs(tuple(merged), {**self.skipped, **other.skipped})

    def without(self, partitions: Iterable[TopicPartition]) -> Epochs:
        """Drops these partitions; their later rows belong to the newest epoch."""
        dropped = set(partitions)
        epochs = tuple(
            replace(epoch, since={p: o for p, o in epoch.since.items() if p not in dropped})
            for epoch in self.epochs
        )
        return replace(self, epochs=epochs)._keeping(lambda p, _: p not in dropped)

    def cut(self, ends: Marks) -> Epochs:
        """Makes the newest epoch begin at these offsets at the latest, in these partitions: the
        records from there on are lost, and records at those offsets are new ones.
        """
        epochs = tuple(
            replace(epoch, since={p: min(o, ends.get(p, o)) for p, o in epoch.since.items()})
            for epoch in self.epochs
        )
        return replace(self, epochs=epochs)._keeping(lambda p, o: o < ends.get(p, o + 1))

    @cached_property
    def text(self) -> str:
        """The JSON form in the progress record; computed once, because every commit needs it.

        Rules, which seldom change, and lists of targets, which many topics share, would be most of
        it: each of them is in it once, and an epoch has its index.
        """
        suites: list[Any] = []
        lists: dict[tuple[str, ...], int] = {}
        epochs = []
        for epoch in self.epochs:
            values = _with_targets(epoch.values, lambda of: lists.setdefault(tuple(of), len(lists)))
            if SUITE in values:
                if values[SUITE] not in suites:
                    suites.append(values[SUITE])
                values[SUITE] = suites.index(values[SUITE])
            known = {"copy_keys": list(epoch.copy_keys)} if epoch.copy_keys else {}
            epochs.append({"values": values, "since": marks_to(epoch.since), **known})
        raw: dict[str, Any] = {"suites": suites, "epochs": epochs}
        if lists:
            raw[TARGETS] = list(lists)
        if self.skipped:
            raw["skipped"] = [[*p, *known] for p, known in sorted(self.skipped.items())]
        return json.dumps(raw, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Epochs:
        """Parses `text`; raises MISSHAPEN for another shape."""
        suites, lists, epochs = raw["suites"], raw.get(TARGETS, ()), []
        for each in raw["epochs"]:
            # A list in its place: written before they were shared.
            values = _with_targets(
                each["values"], lambda of: of if isinstance(of, list) else lists[integer(of)]
            )
            if SUITE in values:
                values[SUITE] = suites[integer(values[SUITE])]
            epochs.append(_epoch(values, each["since"], each.get("copy_keys", ())))
        skipped = {
            (name(topic), integer(number)): tuple(map(integer, offsets))
            for topic, number, *offsets in raw.get("skipped", ())
        }
        return cls(tuple(epochs), skipped)


def _with_targets(values: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The values, each list of targets changed."""

    def changed(table: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**table, TARGETS: change(table[TARGETS])} if TARGETS in table else table

    values = dict(values)
    if TOPICS in values:
        values[TOPICS] = {topic: changed(table) for topic, table in values[TOPICS].items()}
    if DEFAULT_TOPIC in values:
        values[DEFAULT_TOPIC] = changed(values[DEFAULT_TOPIC])
    return values


def _epoch(
    values: Mapping[str, Any], since: Mapping[str, Mapping[str, Any]], keys: Iterable[Any]
) -> Epoch:
    if min(integer(values[PRECISION]), integer(values[WINDOW])) < 1:
        raise ValueError("precision and roll window are positive")
    named = {name(key): value for key, value in values.items()}
    return Epoch(named, marks_from(since), tuple(map(name, keys)))
