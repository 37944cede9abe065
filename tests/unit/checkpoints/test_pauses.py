"""The records of pauses, and the file of those that are known."""

from __future__ import annotations

from pathlib import Path

from duewheel.checkpoints.pauses import (
    FILE_NAME,
    PausedTimers,
    PauseRecord,
    PausesFile,
    changed,
    encoded,
    key_of,
    name_of,
    paused_at,
)


def test_a_pause_is_read_as_it_was_written_and_ends_by_a_record() -> None:
    pause = PauseRecord(5_000, "their database")
    key = key_of("timer-topic", "orders.delayed")
    assert name_of(key) == "timer-topic/orders.delayed"
    begun = changed({}, {key: encoded(pause)})
    assert begun == {"timer-topic/orders.delayed": pause}
    assert changed(begun, {key: encoded(PauseRecord(None))}) == {
        "timer-topic/orders.delayed": PauseRecord(None)
    }
    assert changed(begun, {key: encoded(None)}) == changed(begun, {key: b""}) == {}
    assert encoded(None) != b"", "compaction would remove it"


def test_other_records_of_the_state_topic_are_no_pauses() -> None:
    others = {b"reshard": b"{}", b"clock": b"", b"pause/nothing/a": b"{}", b"\xff": b"1"}
    before = {"target/a": PauseRecord(None)}
    assert changed(before, others) == before
    for damaged in (b"{", b"[]", b'{"until_ms": "x", "note": ""}', b"\xff"):
        assert changed(before, {key_of("target", "a"): damaged}) == {}


def test_a_key_without_a_name_pauses_nothing() -> None:
    """It ended the thread that follows the pauses."""
    assert changed({}, {b"pause/target": encoded(PauseRecord(None))}) == {}
    assert paused_at({"target": PauseRecord(None)}, 0).tags == frozenset()


def test_a_pause_ends_by_itself() -> None:
    pauses = {
        "target/a": PauseRecord(5_000),
        "target/b": PauseRecord(None),
        "timer-topic/t": PauseRecord(6_000),
    }
    assert paused_at(pauses, 4_999) == PausedTimers(frozenset("ab"), frozenset("t"))
    assert paused_at(pauses, 5_000) == PausedTimers(frozenset("b"), frozenset("t"))
    assert paused_at(pauses, 6_000) == PausedTimers(frozenset("b"))


def test_the_file_is_a_hint(tmp_path: Path) -> None:
    assert PausesFile.read(tmp_path) == PausesFile()
    known = PausesFile({"target/bills": PauseRecord(None, "why")})
    known.write(tmp_path)
    assert PausesFile.read(tmp_path) == known
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes().replace(b"bills", b"balls"))
    assert PausesFile.read(tmp_path) == PausesFile()
