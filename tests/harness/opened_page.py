"""The page in a browser, and the app that serves it: what the tests of the page share."""

from __future__ import annotations

from typing import Any

from tests.harness.browser import Browser
from tests.harness.local_world import NOW_MS
from tests.harness.served import RecordingProducer, recording_writer

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.serve.access import Access
from duewheel.serve.app import make_app
from duewheel.serve.service import Service
from duewheel.testing import ManualClock

VIEWS = {
    "pending": "Timers",
    "dead-letters": "Dead letters",
    "receipts": "Receipts",
    "shard": "Largest slot",
}
FIRST_TIMER = "#view-pending tbody tr:first-child button"
READ, NEW = "Read it again", "Show the new timer"


def app_of(
    settings: Settings,
    producer: RecordingProducer | None = None,
    clock: Clock | None = None,
    **access: Any,
) -> Any:
    app = make_app(settings, clock or ManualClock(NOW_MS), Access(**access))
    if producer is not None:
        service: Service = app.state.service
        writer = recording_writer(settings, producer, service.clock)
        view, recorder = service.view, service.recorder
        app.state.service = Service(
            settings, service.clock, view, writer, recorder, service.metrics
        )
    return app


def open_page(page: Browser, address: str, view: str = "pending") -> None:
    page.driver.get(f"{address}#{view}")
    page.wait_text(f"#view-{view}", VIEWS[view])


def rows(page: Browser) -> int:
    return int(page.run("return document.querySelectorAll('#view-pending .list tbody tr').length"))


def field_of(page: Browser, name: str, part: str = "dialog.side") -> str:
    """A named value in a part of the page, usually the panel of a timer."""
    script = """return [...document.querySelector(arguments[0]).querySelectorAll("dt")]
        .find(dt => dt.innerText === arguments[1]).nextSibling.innerText.trim()"""
    return str(page.run(script, part, name))


def click(page: Browser, label: str) -> None:
    page.run(
        "[...document.querySelectorAll('button')].find(b => b.innerText === arguments[0]).click()",
        label,
    )
