"""A rehearsal of Spark that fails: `make setup` goes on without an archive, with the reason."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from duewheel.errors import DuewheelError
from duewheel.streaming.rehearsal import await_batch


def test_a_query_that_has_ended_is_not_waited_for() -> None:
    failed = "Python worker failed to connect back."
    query: Any = SimpleNamespace(exception=lambda: failed)
    begun_s = time.monotonic()
    with pytest.raises(DuewheelError, match="did not start within 10 s: too few free processors"):
        await_batch(query, threading.Semaphore(0))
    assert time.monotonic() - begun_s < 30


def test_a_batch_ends_the_wait() -> None:
    query: Any = SimpleNamespace(exception=lambda: None)
    await_batch(query, threading.Semaphore(1))
