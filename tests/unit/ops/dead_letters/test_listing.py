"""Dead letters in a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.harness.config_file import small_settings
from tests.harness.record_batches import NOW_MS, Record, batch, sealed

from duewheel.api.dead_letters import DeadLetterFilter, DeadLetterQuery
from duewheel.api.messages import KEY_SHOWN_BYTES, LONG_KEY_BYTES
from duewheel.checkpoints.dlq_replay_position import ReplayPosition
from duewheel.cli.dead_letters import letter_line
from duewheel.client.request_headers import rejected_headers
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.kafka.log.reader import LogReader
from duewheel.ops.dead_letters import listing
from duewheel.ops.dead_letters.listing import summary_of
from duewheel.ops.dead_letters.wanted_letters import WantedLetters
from duewheel.schemas.batches import OffsetRanges, TopicPartition
from duewheel.schemas.dead_letters import DeadLetter
from duewheel.schemas.topic_scope import TopicScope


def test_an_id_that_was_refused_for_its_length_is_shown_in_part() -> None:
    headers = [("UNIQ_KEY", b"i" * 1_000_000), ("TIMER_ERROR_CODE", b"bad_timer_id")]
    letter = DeadLetter(0, 7, 1_800_000_000_000, b"k", b"", headers)
    assert summary_of(letter, ReplayPosition.decode(None, "id")).id == "i" * KEY_SHOWN_BYTES


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("delay: 15", "delay: 15'"),
        ("\x1b[2J\n", "\\x1b[2J\\n'"),
        ("x" * 1_000_000, "xxx… (1000022 characters)'"),
    ],
)
def test_the_reason_of_a_producer_is_shown_beside_that_of_ingest(reason: str, shown: str) -> None:
    headers = rejected_headers(reason, "orders", "id", ())
    added = [("TIMER_ERROR_CODE", b"bad_header"), ("TIMER_ERROR", b"TIMER_DELIVER_MS is bad")]
    letter = DeadLetter(0, 7, 1_800_000_000_000, b"k", b"", [*headers, *added])
    error = summary_of(letter, ReplayPosition.decode(None, "id")).error or ""
    assert error.startswith("TIMER_DELIVER_MS is bad: 'a row makes no timer: ")
    assert error.endswith(shown) and len(error) < 700


@pytest.mark.parametrize(
    ("key", "text", "encoded"),
    [(b"\xff", None, "/w=="), (b"\\xff", r"\xff", None), (None, None, None)],
)
def test_a_key_that_is_no_text_is_shown_in_base64(
    key: bytes | None, text: str | None, encoded: str | None
) -> None:
    letter = DeadLetter(0, 7, 1_800_000_000_000, key, b"", ())
    shown = summary_of(letter, ReplayPosition.decode(None, "id"))
    assert (shown.key, shown.key_base64) == (text, encoded)
    assert shown.written_ms == 1_800_000_000_000
    assert (f"key (base64) {encoded}" in letter_line(shown)) is (encoded is not None)
    assert ("key_base64" in shown.as_json()) == (encoded is not None)


def test_a_long_key_is_shown_in_part() -> None:
    """A producer's keys of a megabyte would make every list as large as all messages in it."""
    position = ReplayPosition.decode(None, "id")
    letter = DeadLetter(0, 7, 1_800_000_000_000, b"k" * 1_000_000, b"", ())
    shown = summary_of(letter, position)
    assert (shown.key, shown.key_bytes) == ("k" * KEY_SHOWN_BYTES, 1_000_000)
    alone = summary_of(letter, position, LONG_KEY_BYTES)
    assert (alone.key, alone.key_bytes) == ("k" * LONG_KEY_BYTES, 1_000_000)


Write = Callable[[bytes | bytearray, int], Settings]


class WrittenLog(LogReader):
    """The dead-letter topic, whose one partition has these record batches."""

    def __init__(self, topic: str, octets: bytes, end: int) -> None:
        super().__init__(KafkaClients({}))
        self._place, self._octets, self._end = (topic, 0), octets, end

    def existing(self, *_: object, **__: object) -> list[TopicPartition]:
        return [self._place]

    def topic_id(self) -> str:
        return "id"

    def bounds(self, *_: object, **__: object) -> dict[TopicPartition, tuple[int, int]]:
        return {self._place: (0, self._end)}

    def read(self, ranges: OffsetRanges, _: int = 0) -> Iterator[list[Fetched]]:
        first, _ = ranges[self._place]
        yield [Fetched(self._place, memoryview(self._octets), (), first, self._end)]


def letters_of(*sources: str) -> list[Record]:
    code = ("TIMER_ERROR_CODE", b"expired")
    return [(NOW_MS, b"k", b"v", [code, ("TIMER_SOURCE", each.encode())]) for each in sources]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Write:
    """Makes settings whose dead-letter topic has record batches up to an offset."""
    settings = small_settings(tmp_path)

    def write(octets: bytes | bytearray, end: int) -> Settings:
        log = WrittenLog(settings.dead_letter_topic, bytes(octets), end)
        monkeypatch.setattr(listing, "log_reader", lambda *_: log)
        return settings

    replayed = SimpleNamespace(value=ReplayPosition("id").moved(0, 9, None, "timers").encode())
    monkeypatch.setattr(listing, "newest_record", lambda *_: replayed)
    return write


def test_a_timer_topic_selects(written: Write) -> None:
    """Who writes to another one decides how many dead letters there are of each code."""
    letters = letters_of("others-0@5", "timers-1@6", "others-0@7", "none")
    settings = written(batch(letters), 4)
    every = listing.list_letters(settings, DeadLetterFilter())
    assert [row.replayed for row in every] == [False, True, False, False]
    (row,) = listing.list_letters(settings, DeadLetterFilter(timer_topic="timers"))
    assert row.source == "timers-1@6"
    with pytest.raises(ConfigError, match="is no timer topic"):
        list(listing.list_letters(settings, DeadLetterFilter(timer_topic="timer")))


def test_dead_letters_of_others_become_no_objects(
    written: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One team that writes bad messages without end would end the lists of all others."""
    made: list[int] = []

    class Counted(DeadLetter):
        def __init__(self, *row: Any) -> None:
            super().__init__(*row)
            made.append(self.offset)

    monkeypatch.setattr(listing, "DeadLetter", Counted)
    others = [f"others-0@{number}" for number in range(400)]
    settings = written(batch(letters_of(*others, "timers-0@7", *others)), 801)
    (row,) = listing.list_letters(settings, DeadLetterFilter(timer_topic="timers"))
    assert (row.offset, made) == (400, [400])
    assert not list(listing.list_letters(settings, DeadLetterFilter(code="rate")))
    query, team = DeadLetterQuery(), TopicScope(("t*",))
    page = listing.page_of_letters(settings, query, 600, team)
    assert ([each.offset for each in page.letters], page.next) == ([400], None)
    assert listing.one_letter(settings, 0, 399, body=False, scope=team) is None
    assert made == [400, 400]


def test_dead_letters_are_read_in_chunks_that_fit_into_memory(
    written: Write,
) -> None:
    dense: list[Record] = [(NOW_MS, b"k", None, [("", None)] * 30_000)] * 3
    octets = batch(letters_of(*["timers-0@1"] * 5)) + batch(dense, 5, codec=1) + batch(dense, 8)
    with listing.dead_letter_reader(written(octets, 13), 4) as reader:
        chunks = [
            ([each.offset for each in letters], reached)
            for letters, reached in reader.read(0, 1, 12, WantedLetters())
        ]
    assert chunks == [([1, 2, 3, 4], 5), ([5, 6], 7), ([7, 8], 9), ([9, 10], 12)]


def test_a_batch_that_cannot_be_read_is_left_out(
    written: Write,
) -> None:
    letters = letters_of("timers-0@1", "timers-0@2")
    damaged = batch(letters, 2)
    damaged[-len("timers-0@2") - 1] = 0  # the length of the last value
    octets = batch(letters) + sealed(damaged) + batch(letters, 4)
    rows = listing.list_letters(written(octets, 6), DeadLetterFilter())
    assert [row.offset for row in rows] == [0, 1, 4, 5]


@pytest.mark.parametrize("body", [False, True])
def test_one_letter_of_any_length_is_a_short_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, body: bool
) -> None:
    headers = [("\1" * 40, b"1")] * 50_000
    letter = DeadLetter(0, 7, 1_800_000_000_000, b"\1" * (2 << 20), b"\1" * (2 << 20), headers)

    class Reader:
        """Of one letter."""

        def bounds(self) -> dict[int, tuple[int, int]]:
            return {0: (7, 8)}

        def position(self) -> ReplayPosition:
            return ReplayPosition.decode(None, "id")

        def read(self, *_: object) -> Iterator[tuple[list[DeadLetter], int]]:
            yield [letter], 8

    monkeypatch.setattr(listing, "dead_letter_reader", lambda _: nullcontext(Reader()))
    found = listing.one_letter(small_settings(tmp_path), 0, 7, body=body)
    assert found is not None and found.key_bytes == 2 << 20
    assert found.header_count == len(headers)
    assert len(found.model_dump_json()) < (14 << 20 if body else 1 << 20)
