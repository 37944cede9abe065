"""What keeps a folder from being shared is said, once for each host."""

from __future__ import annotations

import socket
from pathlib import Path

from duewheel.streaming.handover_folder import lacking, trial


def test_a_shared_folder_lacks_nothing_and_is_left_empty(tmp_path: Path) -> None:
    """The executors of a host write the same file."""
    written = [each for _ in range(3) for each in trial(str(tmp_path))([])]
    assert lacking(written) == ""
    assert list(tmp_path.iterdir()) == []


def test_another_host_has_another_folder(tmp_path: Path) -> None:
    written = [*trial(str(tmp_path))([]), ("far", str(tmp_path / "trial-far"), "")]
    assert lacking([*written, *written]) == "far has another folder of this path"


def test_an_executor_without_the_folder(tmp_path: Path) -> None:
    (written,) = trial(str(tmp_path / "none"))([])
    assert lacking([written]).startswith(f"{socket.gethostname()} cannot write there: [Errno 2]")
