"""The page in a headless Chromium beside a real broker: `make test-page`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from tests.harness.browser import Browser, listening
from tests.harness.config_file import write_config
from tests.harness.opened_page import (
    FIRST_TIMER,
    NEW,
    READ,
    app_of,
    click,
    field_of,
    open_page,
    rows,
)
from tests.harness.served import (
    CHANGING,
    TOKEN,
)
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import Pumped, SparklessShard

from duewheel.api.schedules import NewSchedule
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings, load
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.schedules import changes
from duewheel.ops.schedules.listing import find_schedules

pytestmark = pytest.mark.kafka

BROKEN = """
const broken = [], texts = document.createTreeWalker(
  document.querySelector(arguments[0]), NodeFilter.SHOW_TEXT);
for (let text; (text = texts.nextNode()); ) {
  for (const { 0: word, index } of text.data.matchAll(/[\\w@]+/g)) {
    const range = document.createRange();
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    if (new Set([...range.getClientRects()].map(({ top }) => top)).size > 1) {
      broken.push(word);
    }
  }
}
return broken;
"""  # the words of a part of the page that do not stand in one line


def test_a_timer_is_cancelled_in_kafka(page: Browser, config: Path) -> None:
    receipts = {"receipts_topic": f"{load(config).app.id}.receipts"}
    settings = load(config, {"timer": receipts})
    shard = SparklessShard(settings, 1)
    try:
        due = [("TIMER_DELAY_SEC", b"1800")]
        shard.send(
            shard.timers, 0, (b"order-42", b"pay", [("REAL_TOPIC", shard.target.encode()), *due])
        )
        shard.pump()
        with listening(app_of(settings, clock=SystemClock(), change=CHANGING)) as address:
            open_page(page, address)
            page.wait_text("#view-pending .list", "order-42")
            page.run("document.querySelector(arguments[0]).click()", FIRST_TIMER)
            page.wait_text("dialog.side", "Message")
            first_due = field_of(page, "Exactly")
            click(page, "Postpone")
            page.wait_text("dialog.ask", "another due time")
            page.run("document.querySelector('dialog.ask [type=submit]').click()")
            page.wait_text("dialog.ask", "memory only")
            page.keys(TOKEN, Keys.ENTER)
            page.wait_text("dialog.side [role=status]", "is not known yet")
            click(page, NEW)
            page.wait_text("dialog.side", "ingest has not taken it yet")
            page.keys(Keys.ESCAPE)
            shard.pump()
            page.run("document.activeElement.blur()")  # the list is read again by itself
            page.wait(lambda: rows(page) == 2, "the old timer and the new one")
            assert "cancelled" in page.text("#view-pending .list tbody tr:first-child")
            page.run("document.querySelectorAll('#view-pending tbody button')[1].click()")
            page.wait_text("dialog.side", "Message")
            assert field_of(page, "Exactly") != first_due
            click(page, "Cancel the timer")
            page.wait_text("dialog.ask", "cannot be undone")
            page.run("document.querySelector('dialog.ask [type=submit]').click()")
            page.wait_text("dialog.side [role=status]", "The cancel is written")
            shard.pump()
            click(page, READ)
            page.wait_text("dialog.side", "It is cancelled: the message will not be delivered")
            page.keys(Keys.ESCAPE)
            page.wait_text("#view-pending .list", "cancelled")
            open_page(page, address, "dead-letters")
            page.wait_text("#view-dead-letters", "There are no dead letters")
            for key in (b"customer-42", b"k" * 200):
                denied = ("REAL_TOPIC", b"orders.denied")
                shard.send(shard.timers, 0, (key, b"pay", [denied, *due]))
            shard.pump()
            page.run("document.querySelector('#view-dead-letters .head button').click()")
            page.wait_text("#view-dead-letters .list", "target_not_allowed")
            for width in (360, 761, 1200, 1920):
                page.resize(width, 900, "light")
                assert page.run("return document.documentElement.scrollWidth") <= width
                assert page.run(BROKEN, "#view-dead-letters table") == ["k" * 200], width
            page.resize(1400, 900, "light")
            open_page(page, address, "receipts")
            page.wait_text("#view-receipts", "No receipt matches")
            now = [("TIMER_DELAY_MS", b"0"), ("UNIQ_KEY", b"reminder-43")]
            target = ("REAL_TOPIC", shard.target.encode())
            shard.send(shard.timers, 0, (b"order-43", b"pay", [target, *now]))
            shard.pump()
            page.run("document.querySelector('#view-receipts .head button').click()")
            page.wait_text("#view-receipts tbody", "reminder-43")
            assert page.unnamed() == []
            # the token that is missing, and the new timer before ingest has taken it
            assert all("401" in line or "404" in line for line in page.console())
            page.driver.get("about:blank")
    finally:
        shard.close()


def has_copy(settings: Settings, name: str) -> bool:
    found = find_schedules(settings, {name: settings.timer.topics[0]}, {})
    return name in found and not found[name].seed


def test_a_schedule_is_paused_resumed_triggered_and_stopped(
    page: Browser, broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    """By keys alone, beside a shard that works."""
    name = unique_name("app")[-40:].lstrip("-")
    timer = {"topic": {f"{name}.timers": {"recurring": True}}}
    settings = load(write_config(tmp_path, broker.bootstrap_servers, name, timer=timer))
    with (
        closing(Pumped(SparklessShard(settings, 1))) as pumped,
        listening(app_of(settings, clock=SystemClock(), change=CHANGING)) as address,
    ):
        new = {"cron": "0 8 1 1 *", "zone": "Europe/Berlin", "value": "v"}
        yearly = NewSchedule.of({**new, "target": pumped.shard.target})
        with closing(TimerWriter(settings, SystemClock())) as writer:
            written = changes.put(writer, "yearly", yearly, {}, may_add=True)
            assert changes.await_taken(settings, [written.at], 30) == [True]
        # While its first copy is on its way to ingest it is in no list, and the page reads once.
        page.wait(lambda: has_copy(settings, "yearly"), "its copy is not listed")
        page.driver.get(f"{address}#schedules")
        page.wait_text("#view-schedules .list", "0 8 1 1 * Europe/Berlin")
        for width, height, scheme in ((360, 740, "light"), (1400, 900, "dark")):
            page.resize(width, height, scheme)
            assert page.run("return document.documentElement.scrollWidth") <= width
            assert page.unnamed() == []
        page.press_until(Keys.TAB, "[data-row^=yearly]")
        page.keys(Keys.ENTER)
        page.wait_text("dialog.side .instants", "in Europe/Berlin")
        assert page.run("return document.activeElement.innerText") == "Pause"
        page.keys(Keys.ENTER)
        page.wait_text("dialog.ask", "No instant fires until it is resumed")
        page.keys("until the audit", Keys.ENTER)
        page.wait_text("dialog.ask", "memory only")
        page.keys(TOKEN, Keys.ENTER)
        page.wait_text("dialog.side [role=status]", "yearly is paused.")
        page.wait(lambda: has_copy(settings, "yearly"), "the paused one is not listed")
        page.run("document.querySelector('#view-schedules button').click()")  # Refresh
        page.wait_text("#view-schedules .list", "until the audit")
        assert page.run("return document.activeElement.innerText") == "Resume"
        page.keys(Keys.ENTER)
        page.wait_text("dialog.ask", "those of the pause do not")
        page.keys(Keys.ENTER)
        page.wait_text("dialog.side [role=status]", "yearly is resumed.")
        click(page, "Fire once more")
        page.wait_text("dialog.ask", "delivered at once")
        page.run("document.querySelector('dialog.ask [type=submit]').click()")
        page.wait_text("dialog.side [role=status]", "yearly fires once more.")
        page.wait(lambda: len(pumped.delivered()) == 1, "its message")
        click(page, "Stop for good")
        page.wait_text("dialog.ask", "cannot be undone")
        page.run("document.querySelector('dialog.ask [type=submit]').click()")
        page.wait_text("dialog.side [role=status]", "yearly is stopped.")
        page.keys(Keys.ESCAPE)
        page.wait(lambda: "yearly" not in page.text("#view-schedules .list"), "it is no more")
        assert all("401" in line for line in page.console())
        page.driver.get("about:blank")
