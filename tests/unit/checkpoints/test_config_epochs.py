"""Slot-configuration epochs: which settings judge a row, and which rows are read again."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.harness.deliveries import rows
from tests.harness.source_table import HEADERS, SourceRow, as_table, read_records
from tests.harness.timer_rows import TimerRow, suite_parameters, timer_batch
from tests.simulation.contract_check import decoded

from duewheel.checkpoints.config_epochs import Epoch, Epochs
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.errors import RecoveryRefused
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.topic_settings import TopicContract
from duewheel.schemas.wire.copy_mac import signed
from duewheel.streaming.epoch_parser import contracts, parse_by_epoch
from duewheel.wheel.dequeue.requeue import rolled_copies
from duewheel.wheel.recovery.first_offsets import first_marks
from duewheel.wheel.roll_rule import requested_slots
from duewheel.wheel.slots import WheelConfig, slot_of

P: TopicPartition = ("timers", 0)
Q: TopicPartition = ("timers", 1)
NEW: TopicPartition = ("timers", 2)
HOUR_MS = 3_600_000
VALUES = {"precision_ms": 50, "roll_window_ms": 24 * HOUR_MS}
SHORT = {**VALUES, "roll_window_ms": HOUR_MS}
LONG = {**VALUES, "roll_window_ms": 25 * HOUR_MS}
EPOCHS = Epochs.first(VALUES).extended_by(SHORT, {P: 10, Q: 0}).extended_by(LONG, {P: 20, Q: 7})
WHEEL = WheelConfig(50, 2_097_152, 25 * HOUR_MS, HOUR_MS)


def of(epochs: Epochs, partition: TopicPartition, *offsets: int) -> list[int]:
    rows = np.array(offsets, np.int64)
    found: list[int] = epochs.of_rows([partition], np.zeros(len(rows), np.int32), rows).tolist()
    return found


def test_a_row_belongs_to_the_newest_epoch_that_begins_at_or_below_it() -> None:
    assert of(EPOCHS, P, 0, 9, 10, 19, 20, 2**40) == [0, 0, 1, 1, 2, 2]
    assert of(EPOCHS, Q, 0, 6, 7) == [1, 1, 2]
    partition, offset = np.array([1, 0, 1], np.int32), np.array([8, 8, 0], np.int64)
    assert EPOCHS.of_rows([P, Q], partition, offset).tolist() == [2, 0, 1]
    windows_ms = EPOCHS.windows_ms([P, Q], partition, offset)
    assert isinstance(windows_ms, np.ndarray)
    assert windows_ms.tolist() == [25 * HOUR_MS, 24 * HOUR_MS, HOUR_MS]


def test_a_partition_that_was_added_later_belongs_to_the_newest_epoch() -> None:
    assert of(EPOCHS, NEW, 0, 5) == [2, 2]
    # Added between two changes, it has never known the settings before the first.
    later = EPOCHS.extended_by(VALUES, {P: 30, Q: 8, NEW: 3})
    assert of(later, NEW, 0, 2, 3) == [2, 2, 3]


def test_what_comes_behind_a_cut_belongs_to_the_newest_epoch() -> None:
    assert of(EPOCHS.cut({P: 15}), P, 9, 10, 14, 15, 19) == [0, 1, 1, 2, 2]
    assert of(EPOCHS.cut({P: 0}), P, 0, 15) == [2, 2]
    assert EPOCHS.cut({P: 99, NEW: 1}) == EPOCHS


def test_one_window_for_all_rows_is_one_number() -> None:
    same = Epochs.first(VALUES).extended_by({**VALUES, "levels_ms": [1]}, {P: 3})
    rows = np.arange(6)
    assert same.windows_ms([P], np.zeros(6, np.int32), rows) == 24 * HOUR_MS


def test_epochs_are_dropped_that_no_recovery_reads() -> None:
    assert EPOCHS.reaching({P: 9, Q: 100}) == EPOCHS
    assert EPOCHS.reaching({P: 10, Q: 0}).epochs == EPOCHS.epochs[1:]
    assert EPOCHS.reaching({P: 20, Q: 6}).epochs == EPOCHS.epochs[1:]
    alone = EPOCHS.reaching({P: 20, Q: 7})
    assert alone.epochs == EPOCHS.epochs[2:]
    assert alone.reaching({P: 99, Q: 99}) == alone
    # No progress has told of Q yet: it would be read from its beginning.
    assert EPOCHS.reaching({P: 20}).epochs == EPOCHS.epochs[1:]
    assert (alone.begins_at(P), alone.begins_at(NEW)) == (20, 0)
    assert of(alone, P, 0, 20) == [0, 0]


LISTED = {"topics_default": {"targets": 0}}


def test_epochs_are_read_as_they_were_written() -> None:
    assert Epochs.from_json(json.loads(EPOCHS.text)) == EPOCHS
    misshapen: Any
    for misshapen in (
        {},
        {"suites": [], "epochs": []},
        {"suites": [], "epochs": [{"values": {}, "since": {}}]},
        {"suites": [], "epochs": [{"values": {**VALUES, "precision_ms": 0}, "since": {}}]},
        {"suites": [], "epochs": [{"values": {**VALUES, "suite": 0}, "since": {}}]},
        {"suites": [1], "epochs": [{"values": {**VALUES, "suite": "0"}, "since": {}}]},
        {"suites": [], "epochs": [{"values": {**VALUES, **LISTED}, "since": {}}], "targets": []},
    ):
        with pytest.raises((ValueError, LookupError)):
            Epochs.from_json(misshapen)


def test_a_suite_is_written_once() -> None:
    first, *rest = load_suite()["expectations"]
    other = compile_suite({"expectations": rest}, OLD["parameters"])
    epochs = (
        Epochs.first(OLD)
        .extended_by(NOW, {P: 5})
        .extended_by({**NOW, "suite": other.suite}, {P: 6})
        .extended_by(OLD, {P: 7})
    )
    assert Epochs.from_json(json.loads(epochs.text)) == epochs
    reason = json.dumps(first["meta"]["reason"])
    assert [epoch.text.count(reason) for epoch in (epochs, EPOCHS)] == [1, 0]
    assert len(epochs.text) < 3 * len(Epochs.first(OLD).text)


# ---- what is read again --------------------------------------------------------------------------


def progress_of(epochs: Epochs, slot: int, c: int) -> Progress:
    parts = {p: PartitionProgress(slot, c, replied_below=c) for p in (P, Q)}
    return Progress(0, 1, "uuid", 4, 7, epochs, parts)


def test_reading_starts_by_the_longest_window_of_all_epochs() -> None:
    asked: list[int] = []

    def offsets_at(time_ms: int) -> dict[TopicPartition, int]:
        asked.append(time_ms)
        return {P: 4}

    slot = slot_of(1_000 * HOUR_MS, 50)
    epochs = Epochs.first(LONG).extended_by(SHORT, {P: 10, Q: 10})
    assert first_marks(WHEEL, progress_of(epochs, slot, 12), offsets_at) == {P: 4, Q: 12}
    assert asked == [(1_000 - 25 - 1) * HOUR_MS]


def test_nothing_is_read_of_epochs_that_were_dropped() -> None:
    alone = Epochs.first(SHORT).extended_by(LONG, {P: 10, Q: 3}).reaching({P: 10, Q: 3})
    marks = first_marks(WHEEL, progress_of(alone, 0, 12), lambda _: {P: 4, Q: 5})
    assert marks == {P: 10, Q: 5}


def test_a_row_that_is_read_again_means_the_slot_that_it_meant_at_first() -> None:
    now_ms = 1_000 * HOUR_MS
    batch = timer_batch([TimerRow(0, offset, now_ms + 99 * HOUR_MS) for offset in (9, 10, 20)])
    batch = replace(batch, timestamp_ms=np.full(3, now_ms))
    slots, rolled = requested_slots(
        batch, 50, EPOCHS.windows_ms(batch.partitions, batch.partition, batch.offset)
    )
    assert rolled.all()
    meant = [
        requested_slots(batch, 50, hours * HOUR_MS)[0][row] for row, hours in enumerate((24, 1, 25))
    ]
    assert slots.tolist() == meant
    assert len(set(meant)) == 3


def test_what_lies_below_the_oldest_epoch_is_done_whatever_slot_it_seems_to_mean() -> None:
    alone = Epochs.first(SHORT).extended_by(LONG, {P: 10, Q: 3}).reaching({P: 10, Q: 3})
    rows = (np.array([0, 0, 1, 1], np.int32), np.array([9, 10, 2, 3], np.int64))
    later = np.full(4, 2**40)
    assert progress_of(alone, 7, 12).done([P, Q], *rows, later).tolist() == [True, False] * 2


# ---- what messages may say -----------------------------------------------------------------------


def contract(levels_ms: tuple[int, ...], target: str, max_delay_ms: int) -> Contract:
    parameters = suite_parameters(max_delay_ms=max_delay_ms, forbidden_targets=["dead"])
    topics = {"timers": TopicContract(target=target)}
    return Contract(levels_ms, topics, "dead", compile_suite(load_suite(), parameters))


OLD = {**VALUES, **contract((1_000,), "orders", 5_000).slot_values()}
NOW = {**VALUES, **contract((7_000, 9_000), "bills", 8_000).slot_values()}


def records(*rows: tuple[int, int]) -> pa.Table:
    """Records with DELAY 2, and neither key nor target, by partition and offset."""
    delay = [("DELAY", b"2")]
    return as_table(
        [SourceRow(offset, 1_000, delay, number, value=b"%d" % offset) for number, offset in rows]
    )


def parsed(epochs: Epochs, *rows: tuple[int, int]) -> list[tuple[Any, ...]]:
    parsers = [partial(parse, contract=judge) for judge in contracts(epochs, "dead")]
    batch = parse_by_epoch(read_records(records(*rows)), parsers, epochs)
    targets = [batch.targets[index] for index in batch.target.tolist()]
    partitions = [batch.partitions[index] for index in batch.partition.tolist()]
    columns = (partitions, batch.offset.tolist(), batch.due_ms.tolist(), targets)
    assert batch.key_value.to_pylist() == [b"\x01\x02%d" % o for o in batch.offset.tolist()]
    return sorted(zip(*columns, strict=True))


def test_each_row_is_parsed_under_the_contract_of_its_epoch() -> None:
    epochs = Epochs.first(OLD).extended_by(NOW, {P: 5, Q: 2})
    # Level 2 is the highest of the one, and too long for the other.
    assert parsed(epochs, (0, 4), (0, 5), (1, 1), (1, 2), (2, 0)) == [
        (P, 4, 2_000, "orders"),
        (P, 5, 10_000, "dead"),
        (Q, 1, 2_000, "orders"),
        (Q, 2, 10_000, "dead"),
        (NEW, 0, 10_000, "dead"),
    ]
    assert parsed(epochs, (0, 6), (0, 7)) == [(P, 6, 10_000, "dead"), (P, 7, 10_000, "dead")]
    assert parsed(epochs, (0, 3)) == [(P, 3, 2_000, "orders")]
    assert parsed(epochs) == []


def test_the_number_of_a_schema_is_demanded_from_an_epoch_on() -> None:
    """Of a record that was read before, a recovery makes the same timer."""
    rules = compile_suite(load_suite(), suite_parameters())
    some = {"timers": TopicContract(target="orders", value_schema="registry")}
    demanded = {**VALUES, **Contract((1_000,), some, "dead", rules).slot_values()}
    epochs = Epochs.first(OLD).extended_by(demanded, {P: 5})
    places = [(offset, target) for _, offset, _, target in parsed(epochs, (0, 4), (0, 5))]
    assert places == [(4, "orders"), (5, "dead")]


@pytest.mark.parametrize(
    ("origin", "target", "found"),
    [
        (b"3", b"orders", "orders"),
        (b"-1", b"orders", "orders"),  # from a topic that is no more
        (None, b"orders", "dead"),
        (b"9", b"orders", "dead"),
        (b"3", b"dead", "dead"),
    ],
)
def test_a_copy_of_what_was_accepted_may_be_due_later_than_is_accepted_now(
    origin: bytes | None, target: bytes, found: str
) -> None:
    """Only that: whatever a record says of itself, no timer reaches a topic that it must not."""
    headers = [("REAL_TOPIC", target), ("TIMER_DELIVER_MS", b"9999999")]
    if origin is not None:
        headers.append(("TIMER_ORIGIN", origin))
    table = records((0, 9)).drop_columns("headers")
    table = table.append_column("headers", pa.array([headers], HEADERS))
    batch = parse(read_records(table), contract((1_000,), "orders", 5_000))
    assert batch.targets[batch.target[0]] == found


def test_an_epoch_keeps_the_rules_that_it_was_written_with() -> None:
    """Though another version, and the epoch after it, come with others."""
    suite = load_suite()
    suite["expectations"] = [e for e in suite["expectations"] if "target" in str(e["kwargs"])]
    rules = compile_suite(suite, suite_parameters())
    topics = {"timers": TopicContract(target="orders")}
    fewer = {**VALUES, **Contract((9_000,), topics, "dead", rules).slot_values()}
    epochs = Epochs.first(fewer).extended_by(OLD, {P: 5})
    assert parsed(epochs, (0, 4), (0, 5)) == [(P, 4, 10_000, "orders"), (P, 5, 2_000, "orders")]
    changes = epochs.epochs[0].changes(OLD)
    assert set(changes) == {
        "levels_ms",
        "rules",
        "parameters.forbidden_targets",
        "parameters.max_delay_ms",
    }
    assert changes["parameters.max_delay_ms"] == (10**12, 5_000)


def test_an_epoch_that_cannot_be_judged_is_refused() -> None:
    with pytest.raises(RecoveryRefused, match="cannot apply"):
        contracts(Epochs.first(VALUES), "dead")


def test_a_list_of_targets_is_in_the_progress_once_however_many_topics_share_it() -> None:
    listed, own = [f"orders.{n:03}.placed" for n in range(50)], ["bills"]
    topics = {
        f"team.{n:03}.delayed": {"target": "orders", "targets": own if n % 100 == 7 else listed}
        for n in range(500)
    }
    values = {**OLD, "topics": topics, "topics_default": {"targets": listed}}
    epochs = Epochs.first(values).extended_by({**values, "levels_ms": [1]}, {P: 3})
    assert len(epochs.text) < 80_000, "with each transaction; 1.1 MB, each list in its place"
    read = Epochs.from_json(json.loads(epochs.text))
    assert read == epochs
    assert contracts(read, "dead")[0].topic("team.107.delayed").targets == ("bills",)
    assert contracts(read, "dead")[0].topic("team.108.delayed").targets == tuple(listed)
    assert contracts(read, "dead")[0].topic("others").targets == tuple(listed)


def test_lists_of_targets_that_stand_in_their_places_are_read() -> None:
    """Progress of a version that did not share them; without any list, all targets are open."""
    tables = {"a": {"target": "orders", "targets": ["bills", "pay*"]}, "b": {"target": "orders"}}
    values = {**OLD, "topics": tables, "topics_default": {"targets": []}}
    epochs = Epochs.first(values)
    raw = json.loads(epochs.text)
    assert raw["epochs"][0]["values"]["topics"]["a"]["targets"] == 0
    before = {**raw, "epochs": [{**raw["epochs"][0], "values": {**values, "suite": 0}}]}
    del before["targets"]
    read = Epochs.from_json(before)
    assert read == epochs
    (judge,) = contracts(read, "dead")
    assert [judge.topic(name).targets for name in "abc"] == [("bills", "pay*"), None, ()]


def test_keys_of_copies_are_drawn_and_are_no_change_of_settings() -> None:
    """The former key stays valid; two shards that become one have the keys of both."""
    drawn = iter([1, 2, 3, 4])
    first = Epochs.first(VALUES).drawing_key(lambda _: next(drawn))
    assert first.newest.signing_key == bytes(31) + b"\1"
    assert first.newest.changes(VALUES) == {}
    assert Epochs.from_json(json.loads(first.text)) == first
    # A version without keys would log them, as a setting that differs from its own.
    assert json.loads(first.text)["epochs"][0]["values"] == VALUES
    later = first.drawing_key(lambda _: next(drawn)).drawing_key(lambda _: next(drawn))
    assert later.newest.copy_keys == (f"{3:064x}", f"{2:064x}")
    other = Epochs.first(VALUES).drawing_key(lambda _: next(drawn))
    assert later.beside(other).newest.copy_keys == (f"{3:064x}", f"{2:064x}", f"{4:064x}")
    without = Epochs.first(VALUES)
    assert (without.newest.copy_keys, without.newest.signing_key) == ((), b"")
    assert without.beside(without) == without
    judge = contracts(Epochs((Epoch(OLD, copy_keys=later.newest.copy_keys),)), "dead")
    assert judge[0].copy_keys == (bytes(31) + b"\3", bytes(31) + b"\2")


def test_changed_settings_begin_no_earlier_than_the_newest_key() -> None:
    """Copies of before are signed by the former one, and would count as forged."""
    drawn = iter([1, 2, 3])
    first = Epochs.first(VALUES).drawing_key(lambda _: next(drawn))
    twice = first.extended_by(VALUES, {P: 10}).drawing_key(lambda _: next(drawn))
    drawn_at_10 = twice.drawing_key(lambda _: next(drawn))
    changed = drawn_at_10.extended_by(SHORT, {P: 4, Q: 4})
    assert of(changed, P, 4, 9, 10) == [0, 0, 2]
    assert of(changed, Q, 4) == [2]


def test_the_progress_alone_is_enough_to_accept_its_copies() -> None:
    """After the loss of a data directory there is nothing else; another shard's key is none."""
    drawn = iter([5, 6])
    mine, other = (
        Progress(0, 1, "owner", 1, 0, Epochs.first(OLD).drawing_key(lambda _: next(drawn)), {})
        for _ in range(2)
    )
    far = replace(rows(["orders"], [0]), due_ms=np.array([9_999_999]))
    copy = signed(rolled_copies(far, np.array([True])), mine.epochs.newest.signing_key)
    headers = decoded(copy.headers[0].as_py(), int(copy.header_count[0]))
    table = as_table([SourceRow(9, 1_000, headers, 0, value=b"v")])
    for progress, code, origin in ((mine, {}, 0), (other, {"delay_too_long": 1}, 9)):
        read = Progress.decode(progress.encode()).epochs
        batch = parse(read_records(table), contracts(read, "dead")[0])
        assert (batch.rejections(), batch.origin_offset.tolist()) == (code, [origin])


def test_unsigned_copies_of_one_shard_stay_copies_beside_a_shard_with_a_key() -> None:
    """One was begun by an older version, and got its key later: a recovery reads both histories."""
    p, q = ("timers", 0), ("timers", 1)
    older = Epochs.first(VALUES).extended_by(VALUES, {p: 5}).drawing_key(lambda _: 1)
    newer = Epochs.first(VALUES).drawing_key(lambda _: 2)
    newer = newer.extended_by(newer.newest.values, {q: 7})
    for merged in (older.beside(newer), newer.beside(older)):
        for partition, own in ((p, older), (q, newer)):
            offset = np.arange(12)
            where = ([partition], np.zeros(12, np.int32), offset)
            found, wanted = (
                [bool(epochs.epochs[i].copy_keys) for i in epochs.of_rows(*where)]
                for epochs in (merged, own)
            )
            assert found == wanted


def test_a_change_in_a_table_is_named_by_its_key() -> None:
    before = {**VALUES, "topics": {"a": {"target": "x"}}, "parameters": {"p": 1, "q": 2}}
    changes = Epochs.first(before).newest.changes
    after = {**VALUES, "topics": {"a": {"target": "y"}, "b": {}}, "parameters": {"p": 1}}
    assert changes(after) == {
        "parameters.q": (2, None),
        "topics.a": ({"target": "x"}, {"target": "y"}),
        "topics.b": (None, {}),
    }
    assert changes(before) == {}


def test_the_epoch_of_a_cancel_without_a_reply_is_kept() -> None:
    epochs = Epochs.first(SHORT).extended_by(LONG, {P: 10, Q: 3})
    progress = progress_of(epochs, 0, 12)
    later = {P: 11, Q: 12}
    assert len(epochs.reaching(first_marks(WHEEL, progress, lambda _: later))) == 1
    live = {**progress.partitions, P: replace(progress.partitions[P], replied_below=4)}
    marks = first_marks(WHEEL, replace(progress, partitions=live), lambda _: later)
    assert marks == {P: 4, Q: 12}
    assert len(epochs.reaching(marks)) == 2
