"""The position of an import, as it stands in the state topic."""

from __future__ import annotations

import pytest

from duewheel.checkpoints.import_position import ImportPosition, key_of
from duewheel.errors import ConfigError, RecoveryRefused

SOURCE = {"service": "etf1", "topic": "schedules"}


def test_it_is_read_as_it_was_written() -> None:
    begin = ImportPosition.decode(None, "mine", SOURCE)
    assert (begin.place, begin.read, begin.written) == ({}, 0, 0)
    moved = begin.moved({"0": 7}, 5, 3).moved({"0": 9, "1": 2}, 4, 4)
    found = ImportPosition.decode(moved.encode(), "mine", SOURCE)
    assert found == moved
    assert (dict(found.place), found.read, found.written) == ({"0": 9, "1": 2}, 9, 7)
    assert key_of("mine") == b"import:mine"


def test_a_name_keeps_its_source() -> None:
    written = ImportPosition(SOURCE).encode()
    with pytest.raises(ConfigError, match=r"'mine' .* \(topic: schedules, now others\)"):
        ImportPosition.decode(written, "mine", {**SOURCE, "topic": "others"})


@pytest.mark.parametrize("value", [b"", b"[]", b'{"source": {}}', b'{"source": {"a": 1}}'])
def test_other_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(RecoveryRefused, match="the import 'mine' cannot be read"):
        ImportPosition.decode(value, "mine", SOURCE)
