"""The file of what keeps deliveries from leaving."""

from __future__ import annotations

from pathlib import Path

from duewheel.checkpoints.obstacles import FILE_NAME, Obstacles


def test_what_is_written_is_read_and_damage_is_no_obstacle(tmp_path: Path) -> None:
    assert Obstacles.read(tmp_path) == Obstacles()
    written = Obstacles({"bills": "no leader"}, {"later": "mails refused a record"})
    written.write(tmp_path)
    assert Obstacles.read(tmp_path) == written
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes().replace(b"bills", b"balls"))
    assert Obstacles.read(tmp_path) == Obstacles()
