"""The time limit of a test, a plugin of pytest: a test that exceeds it fails alone.

pytest-timeout's own alarm raises wherever the main thread is. Between the phases of a test, as in a
hook that reports it, that ends the whole run with an internal error. Here it raises within setup,
call and teardown only, where pytest takes it for the test's failure. The limit follows the load of
the host (patience.py). Settings and marks are pytest-timeout's.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.harness.patience import Patience

_LOOK_S = 1.0


class _Phase:
    """Of the test that runs."""

    is_open = False


@contextmanager
def _open() -> Iterator[None]:
    _Phase.is_open = True
    try:
        yield
    finally:
        _Phase.is_open = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Iterator[None]:
    with _open():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Iterator[None]:
    with _open():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    with _open():
        return (yield)


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Begins the limit of a test. What runs on afterwards, as its teardown, has the same again."""
    patience = Patience(settings.timeout)

    def look(*_: object) -> None:
        nonlocal patience
        if _Phase.is_open and patience.is_over():
            patience = Patience(settings.timeout)
            pytest.fail(f"time limit: {settings.timeout:g} s of a free host")

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # pytest-timeout calls it
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    return True
