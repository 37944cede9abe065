"""The pytest plugin: a fixture with the whole service, on a clock that the test moves.

    def test_a_reminder_comes_after_15_minutes(duewheel):
        producer = duewheel.producer()
        producer.schedule("orders", b"pay your order", key=b"order-42", delay="15m")
        duewheel.advance("15m")
        assert [m.value for m in duewheel.delivered("orders")] == [b"pay your order"]

pytest loads it wherever duewheel is installed: without the extra `testing`, too. So it imports the
service where it is used. docs/testing.md has the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from duewheel.extras import remedy

if TYPE_CHECKING:  # the client alone is installed without numpy and pyarrow
    from duewheel.testing.service import LocalService


@pytest.fixture
def duewheel_settings() -> Mapping[str, Any] | Path | None:
    """The settings of the fixture `duewheel`. A test overrides it with a fixture of this name:
    with the sections of `duewheel.toml`, or the path of the file.
    """
    return None


@pytest.fixture
def duewheel(duewheel_settings: Mapping[str, Any] | Path | None) -> Iterator[LocalService]:
    """The service in this process: a test schedules, advances its clock, and asserts."""
    try:
        with warnings.catch_warnings():
            # 218 of kafka-python, which reads its schemas in a way that Python 3.11 calls old.
            warnings.filterwarnings("ignore", "(open|read)_text is deprecated", DeprecationWarning)
            from duewheel.testing.service import LocalService
    except ModuleNotFoundError as error:
        text = remedy(error, "testing")
        if text is None:
            raise
        pytest.fail(f"the fixture `duewheel`: {text}", pytrace=False)
    with LocalService.started(duewheel_settings) as service:
        yield service
