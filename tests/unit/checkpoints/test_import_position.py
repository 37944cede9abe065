"""The position of an import, as it stands in the state topic."""

from __future__ import annotations

import pytest

from duewheel.checkpoints.import_position import ImportPosition, key_of
from duewheel.errors import RecoveryRefused


def test_it_is_read_as_it_was_written() -> None:
    assert ImportPosition.decode(None, "mine") == ImportPosition()
    position = ImportPosition(7, "ab" * 32, 5, {("A.orders.delayed", 1): 3})
    assert ImportPosition.decode(position.encode(), "mine") == position
    assert key_of("mine") == b"import:mine"


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"[]", b'{"lines": 1}', b'{"lines": 1, "sha256": 2, "written": 0, "ends": {}}'),
        b'{"lines": -1, "sha256": "00", "written": 0, "ends": {}}',
        b'{"lines": 1, "sha256": "00", "written": 2, "ends": {}}',
        b'{"lines": 1, "sha256": "00", "written": 1, "ends": {"orders": 1}}',
    ],
)
def test_other_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(RecoveryRefused, match="the import 'mine' cannot be read"):
        ImportPosition.decode(value, "mine")
