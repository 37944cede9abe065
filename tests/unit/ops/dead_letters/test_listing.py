"""Dead letters in a list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.harness.config_file import small_settings

from duewheel.api.dead_letters import DeadLetterFilter
from duewheel.api.messages import KEY_SHOWN_BYTES, LONG_KEY_BYTES
from duewheel.checkpoints.dlq_replay_position import ReplayPosition
from duewheel.cli.dead_letters import letter_line
from duewheel.client.request_headers import rejected_headers
from duewheel.errors import ConfigError
from duewheel.ops.dead_letters import listing
from duewheel.ops.dead_letters.listing import summary_of
from duewheel.schemas.dead_letters import DeadLetter


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


def test_a_timer_topic_selects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who writes to another one decides how many dead letters there are of each code."""
    added = [("TIMER_ERROR_CODE", b"expired")]
    letters = [
        DeadLetter(0, offset, 1_800_000_000_000, b"k", b"v", [*added, ("TIMER_SOURCE", source)])
        for offset, source in enumerate([b"others-0@5", b"timers-1@6", b"others-0@7", b"none"])
    ]

    class Reader:
        """Of these letters."""

        def bounds(self, *_: object) -> dict[int, tuple[int, int]]:
            return {0: (0, 4)}

        def position(self) -> ReplayPosition:
            return ReplayPosition("id").moved(0, 9, None, "timers")

        def read(self, *_: int) -> Iterator[tuple[list[DeadLetter], int]]:
            yield letters, 4

    monkeypatch.setattr(listing, "dead_letter_reader", lambda _: nullcontext(Reader()))
    settings = small_settings(tmp_path)
    every = listing.list_letters(settings, DeadLetterFilter())
    assert [row.replayed for row in every] == [False, True, False, False]
    (row,) = listing.list_letters(settings, DeadLetterFilter(timer_topic="timers"))
    assert row.source == "timers-1@6"
    with pytest.raises(ConfigError, match="is no timer topic"):
        list(listing.list_letters(settings, DeadLetterFilter(timer_topic="timer")))


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

        def read(self, *_: int) -> Iterator[tuple[list[DeadLetter], int]]:
            yield [letter], 8

    monkeypatch.setattr(listing, "dead_letter_reader", lambda _: nullcontext(Reader()))
    found = listing.one_letter(small_settings(tmp_path), 0, 7, body=body)
    assert found is not None and found.key_bytes == 2 << 20
    assert found.header_count == len(headers)
    assert len(found.model_dump_json()) < (14 << 20 if body else 1 << 20)
