"""The page in a headless Chromium: `make test-page`. Without the browser they are skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from tests.harness.browser import Browser, listening
from tests.harness.local_world import NOW_MS, LocalWorld
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
from tests.harness.recovery_world import RecoveryWorld, rereading, settings_of_files
from tests.harness.served import (
    CHANGING,
    COUNT,
    TOKEN,
    RecordingProducer,
    fill,
    settings_of,
    shard_of,
    without_progress,
)
from tests.harness.timer_rows import P0, P1, TimerRow

from duewheel.checkpoints.obstacles import Obstacles
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.quota_waiting import QuotaWaiting
from duewheel.checkpoints.state_file import Damage, State
from duewheel.client import Answer
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.dev.listeners import HOST, free_ports
from duewheel.ops.timers import pending
from duewheel.schemas.topic_scope import TopicScope
from duewheel.serve.access import Caller
from duewheel.testing import ManualClock

SIZES = [(360, 740), (800, 900), (1400, 900)]


@pytest.fixture(autouse=True)
def progress_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    without_progress(monkeypatch)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = settings_of(tmp_path, show_bodies=True)
    fill(settings)
    return settings


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size[0]))
def test_every_view_fits_and_names_its_controls(
    page: Browser, settings: Settings, size: tuple[int, int], scheme: str
) -> None:
    page.resize(*size, scheme)
    with listening(app_of(settings)) as address:
        for view in ("pending", "shard"):
            open_page(page, address, view)
            page.wait_text("#strip", "120\ncancelled ones included")
            if view == "pending":
                page.wait_text("#view-pending .caption", f"{2 * COUNT} timers")
            assert page.run("return document.documentElement.scrollWidth") <= size[0], view
            assert page.run("return document.querySelector('nav').offsetHeight") < 80, (
                "in two lines"
            )
            assert page.unnamed() == []
        ground = page.run("return getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(244, 246, 248)") == (scheme == "light")
        page.driver.get("about:blank")  # before the server ends


def test_the_shards_of_a_fleet_side_by_side(page: Browser, tmp_path: Path) -> None:
    other = settings_of(tmp_path / "other")
    fill(other)
    (port,) = free_ports(1)
    away = f"http://{HOST}:{port}"
    with listening(app_of(other)) as there:
        urls = (there.rstrip("/"), away)
        own = settings_of(tmp_path / "own", shards=urls)
        fill(own)
        shard = own.shard.model_copy(update={"count": 3})
        with listening(app_of(own.model_copy(update={"shard": shard}))) as address:
            open_page(page, address)
            page.wait_text("nav", "Fleet")
            page.run("document.querySelector('nav [data-view=fleet]').click()")
            page.wait_text("#view-fleet", away)
            text = page.run("return document.querySelector('#view-fleet').innerText")
            assert "No server has answered for its owner." in text, "shards 1 and 2"
            assert page.run("return document.querySelectorAll('#view-fleet tbody tr').length") == 4
            assert page.console() == []
            page.driver.get("about:blank")  # before the server ends
    with listening(app_of(other)) as address:
        open_page(page, address)
        page.wait_text("#strip", "120\ncancelled ones included")
        assert "Fleet" not in page.run("return document.querySelector('nav').innerText")
        text = page.run("return document.querySelector('#view-pending').innerText")
        assert "all shards" not in text and "in shard" not in text


def test_timers_of_another_shard_are_found_and_opened(page: Browser, tmp_path: Path) -> None:
    other = shard_of(tmp_path / "other", index=1, count=2)
    fill(other)
    with listening(app_of(other)) as there:
        own = shard_of(tmp_path / "own", (there.rstrip("/"),), count=2)
        LocalWorld(own.storage.data_dir, own.wheel, starts={P0: 0, P1: 0}).stop()
        with listening(app_of(own)) as address:
            page.driver.get(f"{address}#pending?id=timers-0@1")
            page.wait_text("#view-pending", "No pending timer matches in shard 0 of 2.")
            click(page, "Search in all shards")
            page.wait_text("#view-pending", "Shard 0 is not searched: no server")
            assert rows(page) == 1
            page.run(f"document.querySelector('{FIRST_TIMER}').click()")
            page.wait_text("dialog.side", "timers-0@1")
            assert "shard 1" in field_of(page, "State")
            assert page.console() == []
            page.driver.get("about:blank")  # before the servers end


def test_the_switch_overrides_the_system(page: Browser, settings: Settings) -> None:
    with listening(app_of(settings)) as address:
        open_page(page, address)
        page.run("document.getElementById('theme').focus()")
        page.keys("Dark")
        page.wait(
            lambda: page.run("return document.documentElement.dataset.theme") == "dark", "dark"
        )
        open_page(page, f"{address}?again")
        assert page.run("return getComputedStyle(document.body).colorScheme") == "dark"
        page.run("localStorage.clear()")
        page.driver.get("about:blank")


def test_a_bar_selects_its_timers(page: Browser, settings: Settings) -> None:
    with listening(app_of(settings)) as address:
        open_page(page, address, "pending")
        page.driver.get(f"{address}#pending?range=minute")
        page.wait_text("#view-pending .caption", "timers of 120")
        page.run("document.querySelector('.bar[tabindex=\"0\"]').focus()")
        page.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        page.wait(
            lambda: "2 timers" in page.run("return document.activeElement.ariaLabel"), "a bar"
        )
        page.keys(Keys.ENTER)
        page.wait(lambda: rows(page) == 2, "its timers")
        assert "from=" in page.driver.current_url
        page.run("document.querySelector('#view-pending details summary').click()")
        page.wait_text("#view-pending details table", "Timers")
        page.driver.back()
        page.wait(lambda: rows(page) == 100, "all timers")
        page.driver.get("about:blank")


def test_a_time_is_taken_in_the_format_in_which_it_is_shown(
    page: Browser, settings: Settings
) -> None:
    begin = "document.querySelector('#view-pending [placeholder^=YYYY]')"
    with listening(app_of(settings)) as address:
        page.driver.get(f"{address}#pending?from={NOW_MS + 10_000}&to={NOW_MS + 20_000}")
        page.wait(lambda: rows(page) == 20, "the timers of ten seconds")
        shown = page.run(f"return {begin}.value")
        assert shown.endswith("00:10")
        page.run(f"{begin}.select()")
        page.keys("yesterday", Keys.ENTER)
        assert "Give a time" in page.run(f"return {begin}.validationMessage")
        assert f"from={NOW_MS + 10_000}&" in page.driver.current_url
        page.run(f"{begin}.select()")
        page.keys(f"{shown[:-2]}15", Keys.ENTER)
        page.wait(lambda: rows(page) == 10, "the timers of five seconds")
        page.driver.get("about:blank")


LEFT_MS = """
return (async (name, longest) => {
  const [ranges, format] = await Promise.all([
    import("/page/ranges.js"),
    import("/page/format.js"),
  ]);
  const { from, bars, width } = ranges.named(name, longest);
  return from + bars * width - format.now();
})(...arguments);
"""


def test_a_range_reaches_as_far_as_its_name_says(page: Browser, settings: Settings) -> None:
    """Also shortly before the next bar begins."""
    with listening(app_of(settings, clock=ManualClock(NOW_MS + 3_599_900))) as address:
        open_page(page, address)
        page.wait_text("#view-pending .caption", "overdue")
        for name, span_s in {"minute": 60, "hour": 3_600, "day": 86_400, "all": 864_000}.items():
            assert page.run(LEFT_MS, name, 864_000_000) >= span_s * 1_000, name
        page.driver.get("about:blank")


TICKS = """
return import("/page/ranges.js").then(({ barsOf }) => {
  const range = { from: arguments[0], width: 3_600_000, bars: 25 };
  return barsOf(range, Array(25).fill(0)).map(({ tick }) => tick !== null);
});
"""


def test_the_last_bar_has_no_tick(page: Browser, settings: Settings) -> None:
    """Its text would be cut, where a day from midnight ends at midnight."""
    with listening(app_of(settings)) as address:
        open_page(page, address)
        ticks = page.run(TICKS, NOW_MS - 8 * 3_600_000)
        assert [i for i, tick in enumerate(ticks) if tick] == list(range(0, 24, 3))
        page.driver.get("about:blank")


def test_a_timer_is_cancelled_by_keys_alone(page: Browser, settings: Settings) -> None:
    producer = RecordingProducer(answer=Answer.CANCELLED)
    with listening(app_of(settings, producer, change=CHANGING)) as address:
        open_page(page, address)
        page.wait(lambda: rows(page) == 100, "the list")
        page.press_until(Keys.TAB, FIRST_TIMER)
        page.keys(Keys.ENTER)
        page.wait_text("dialog.side", "Message")
        page.press_until(Keys.TAB, "dialog.side .grave")
        page.keys(Keys.ENTER)
        page.wait_text("dialog.ask", "will not be delivered, and this cannot be undone")
        assert page.run("return document.activeElement.innerText") == "Do nothing"
        page.press_until(Keys.TAB, "dialog.ask [type=submit]")
        assert producer.calls == []
        page.keys(Keys.ENTER)
        page.wait_text("dialog.ask", "memory only")
        page.keys("not the right one", Keys.ENTER)
        page.wait_text("dialog.ask", "The token was refused")
        page.keys(TOKEN, Keys.ENTER)
        page.wait_text("dialog.side [role=status]", "Cancelled: the message will not be delivered")
        assert [name for name, _, _ in producer.calls] == ["cancel"]
        assert (field_of(page, "State"), panel_buttons(page)) == ("cancelled", [])
        assert page.run("return document.activeElement.innerText") == "Close"
        page.keys(Keys.ESCAPE)
        page.wait(lambda: not page.run("return document.querySelector('dialog')"), "closed")
        stored = page.run("return JSON.stringify([localStorage, sessionStorage, document.cookie])")
        assert TOKEN not in stored
        # the refused tokens
        assert all("401" in line for line in page.console())
        page.driver.get("about:blank")


def panel_buttons(page: Browser) -> list[str]:
    """The buttons of the panel of a timer that can be pressed, Close aside."""
    script = """return [...document.querySelectorAll("dialog.side .row button:enabled")]
        .map(b => b.innerText)"""
    return [str(label) for label in page.run(script)]


CHANGES = ["Postpone", "Fire now", "Cancel the timer"]

UNKNOWN = "unknown until it is read again"
AFTER = [  # the change, its reply; the state, and the buttons that are left
    ("Cancel the timer", Answer.ALREADY_DELIVERED, "delivered", []),
    ("Cancel the timer", Answer.UNKNOWN, UNKNOWN, [READ]),
    ("Fire now", Answer.CANCELLED, "replaced", []),
    ("Postpone", Answer.CANCELLED, "replaced", [NEW]),
    ("Postpone", Answer.ALREADY_DELIVERED, "delivered", [NEW]),
    ("Postpone", Answer.UNKNOWN, UNKNOWN, [READ, NEW]),
    ("Fire now", None, "pending", CHANGES),
]


def test_the_panel_shows_what_a_reply_says(page: Browser, tmp_path: Path) -> None:
    """And leaves the buttons that make sense after it; all of them if the change has failed."""
    settings, producer, clock = settings_of(tmp_path), RecordingProducer(), SystemClock()
    data_dir, now_ms = settings.storage.data_dir, clock.now_ms()
    world = LocalWorld(data_dir, settings.wheel, starts={P0: 0}, now_ms=now_ms)
    world.put(*range(600_000, 600_000 + 1_000 * len(AFTER), 1_000))
    world.stop()
    with listening(app_of(settings, producer, clock, change=CHANGING)) as address:
        open_page(page, address)
        page.wait(lambda: rows(page) == len(AFTER), "the list")
        for place, (change, answer, state, buttons) in enumerate(AFTER):
            producer.answer, producer.is_down = answer, answer is None
            page.run(
                "document.querySelectorAll('#view-pending tbody button')[arguments[0]].click()",
                place,
            )
            page.wait_text("dialog.side", "Message")
            assert (field_of(page, "State"), panel_buttons(page)) == ("pending", CHANGES)
            click(page, change)
            page.wait_text("dialog.ask", "timer")
            page.run("document.querySelector('dialog.ask [type=submit]').click()")
            if place == 0:
                page.wait_text("dialog.ask", "memory only")
                page.keys(TOKEN, Keys.ENTER)
            page.wait(lambda: page.text("dialog.side [role=status]"), "its outcome")
            found = (field_of(page, "State"), panel_buttons(page))
            assert found == (state, buttons), (change, answer)
            page.keys(Keys.ESCAPE)
            page.wait(lambda: not page.run("return document.querySelector('dialog')"), "closed")
        assert all("401" in line or "503" in line for line in page.console())
        page.driver.get("about:blank")


def test_changes_that_are_off_ask_for_no_token(page: Browser, settings: Settings) -> None:
    with listening(app_of(settings)) as address:
        open_page(page, f"{address}", "shard")
        page.wait_text("#view-shard", "Largest slot")
        page.run("document.querySelector('[aria-label=\"Pause dequeue\"]').click()")
        page.wait_text("dialog.ask", "No timer is delivered until")
        page.run("document.querySelector('dialog.ask [type=submit]').click()")
        page.wait_text("#view-shard .note", "changes are off")
        assert all("403" in line for line in page.console())
        page.driver.get("about:blank")


def test_a_token_for_some_timer_topics_shows_these_and_why_the_rest_is_refused(
    page: Browser, settings: Settings
) -> None:
    team = {TOKEN.encode(): Caller("team", TopicScope(("timers", "team.*")))}
    with listening(app_of(settings, RecordingProducer(), change=team, read=team)) as address:
        page.driver.get(f"{address}#pending")
        page.wait_text("#conditions", "Reads need a token here")
        click(page, "Give the token")
        page.wait_text("dialog.ask", "memory only")
        page.keys(TOKEN, Keys.ENTER)
        page.wait(lambda: rows(page) == 100, "the list")
        why = "the token team is for timers, team.*, and this is of all timer topics"
        page.wait_text("#view-pending", f"The histogram cannot be read: {why}")
        page.run("location.hash = 'shard'")
        page.wait_text("#view-shard", f"They cannot be counted: {why}")
        page.run("document.querySelector('[aria-label=\"Pause dequeue\"]').click()")
        page.wait_text("dialog.ask", "No timer is delivered until")
        page.run("document.querySelector('dialog.ask [type=submit]').click()")
        page.wait_text("#view-shard .note", why)
        assert all("401" in line or "403" in line for line in page.console())
        page.driver.get("about:blank")


def test_matching_timers_are_counted_before_they_are_cancelled(
    page: Browser, settings: Settings
) -> None:
    producer = RecordingProducer(answer=Answer.CANCELLED)
    with listening(app_of(settings, producer, change=CHANGING)) as address:
        page.driver.get(f"{address}#pending?topic=orders")
        page.wait(lambda: 0 < rows(page) < 100, "those of the target")
        click(page, "Cancel all that match")
        page.wait_text("dialog.ask", "memory only")
        page.keys(TOKEN, Keys.ENTER)
        page.wait_text("dialog.ask h2", "timers?")
        assert producer.calls == []
        page.run("document.querySelector('dialog.ask [type=submit]').click()")
        page.wait_text("#view-pending", "cancels are written. Replies: cancelled")
        assert {name for name, _, _ in producer.calls} == {"cancel"}
        assert all("401" in line for line in page.console())
        page.driver.get("about:blank")


def test_a_list_during_a_recovery_is_a_part(
    page: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RecoveryWorld(tmp_path, monkeypatch)
    rereading(world, 3)
    with listening(app_of(settings_of_files(world))) as address:
        for search, found in (("", "matches so far."), ("&all=1", "matches in 1 shards so far.")):
            page.driver.get(f"{address}#pending?id=timers-0@1{search}")
            page.wait_text("#view-pending .list", f"No pending timer {found}")
            page.wait_text("#view-pending", "Shard 0 still reads its timer topics again")
        world.ingest()
        click(page, "Refresh")
        page.wait(lambda: rows(page) == 1, "the timer")
        assert "still" not in page.run("return document.querySelector('#view-pending').innerText")
        page.driver.get("about:blank")
    world.kill()


def test_what_a_producer_wrote_is_text(page: Browser, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, show_bodies=True)
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    # No calendar has this due time.
    world.append(TimerRow(0, 1, -(10**16), timer_id=f"{hostile}\u202e".encode()))
    world.stop()
    with listening(app_of(settings)) as address:
        open_page(page, address)
        page.wait_text("#view-pending .list", hostile)
        page.wait_text("#view-pending .list", f"{-(10**16)} ms")
        page.driver.find_element("css selector", FIRST_TIMER).click()
        page.wait_text("dialog", f"{hostile}\\u202e")
        assert page.run("return document.querySelectorAll('img, main script').length") == 0
        page.driver.get(f"{address}#pending?id=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
        page.wait_text("#view-pending .list", "No pending timer matches")
        assert page.run("return document.querySelectorAll('img').length") == 0
        page.driver.get("about:blank")


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"decoded": '{"a": "<img>"}', "decoded_by": "AVRO schema 1"}, '{"a": "<img>"}'),
        (
            {"not_decoded": "the registry has no schema 1"},
            "Not decoded: the registry has no schema 1",
        ),
    ],
)
def test_a_decoded_value_is_beside_its_bytes(
    page: Browser,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, str],
    shown: str,
) -> None:
    monkeypatch.setattr(pending, "decoded_fields", lambda *_: fields)
    with listening(app_of(settings)) as address:
        open_page(page, address)
        page.wait_text("#view-pending .caption", f"{2 * COUNT} timers")
        page.driver.find_element("css selector", FIRST_TIMER).click()
        page.wait_text("dialog", shown)
        page.wait_text("dialog", "base64 /wA=")
        assert page.run("return document.querySelectorAll('img').length") == 0
        page.driver.get("about:blank")


def test_a_recovery_and_the_loss_of_the_api_are_shown(page: Browser, settings: Settings) -> None:
    with listening(app_of(settings)) as address:
        open_page(page, address)
        page.wait_text("#conditions", "Dequeue does not run: due timers wait")
        page.wait_text("#state", "Not ready")
        with State.open(settings.storage.data_dir) as state:
            state.note_damage(Damage.CACHE_LOST)
        page.wait_text("#conditions", "files are being recovered")
        page.wait_text("#state", "Recovering")
    page.wait_text("#conditions", "The API cannot be reached")
    page.wait_text("#state", "No answer")
    page.wait_text("#conditions", "What is shown is from")
    page.driver.get("about:blank")
    lines = page.console()
    assert [line for line in lines if "503" not in line and "ERR_" not in line] == []


FASTER = """
window.pauses = [];
const wait = window.setTimeout;
window.setTimeout = (call, ms) => wait(call, pauses.push(ms) && ms / 50);
"""


def test_every_read_pauses_longer_while_the_api_is_gone(page: Browser, settings: Settings) -> None:
    with listening(app_of(settings)) as address:
        open_page(page, address)
        page.wait(lambda: rows(page) == 100, "the list")
    page.run(FASTER)
    page.wait(lambda: page.run("return pauses.filter((ms) => ms === 15000).length >= 50"), "reads")
    reads = "pauses.filter((ms) => ms !== 3000)"  # without the fleet's looks: it is not shown
    assert page.run(f"return {reads}.slice(-20).every((ms) => ms === 15000)")
    page.wait_text("#view-pending", "Timers cannot be read")
    page.driver.get("about:blank")
    assert [line for line in page.console() if "ERR_" not in line] == []


def test_one_cause_is_one_line_and_the_view_stays_on_a_phone(
    page: Browser, settings: Settings
) -> None:
    page.resize(*SIZES[0], "light")
    with listening(app_of(settings)) as address:
        open_page(page, address)
        page.wait_text("#conditions summary", "2 more conditions")
        seen = (
            "return [...document.querySelectorAll('.condition')].filter(e => e.checkVisibility())"
        )
        assert page.run(f"{seen}.map(e => e.dataset.name)") == ["dequeue_not_running"]
        top = page.run("return document.querySelector('#view-pending').getBoundingClientRect().top")
        assert top < 0.8 * SIZES[0][1]
        page.driver.get("about:blank")


def test_a_topic_at_its_quota_is_shown(page: Browser, tmp_path: Path) -> None:
    """While messages wait for it, and no longer."""
    settings = settings_of(tmp_path, quotas={"timers": 20})
    fill(settings)
    data_dir = settings.storage.data_dir
    with listening(app_of(settings)) as address:
        open_page(page, address)
        page.wait_text("#conditions", "Dequeue does not run")
        page.run("document.querySelector('#conditions summary').click()")
        assert "quota" not in page.text("#conditions")
        waiting = {P0: (60, 1_260), P1: (60, 94)}
        QuotaWaiting(NOW_MS, waiting).write(data_dir)
        page.wait_text(
            "#conditions [data-name=quota_timers].warn",
            "timers has reached its quota of 20 per second: 1,234 messages wait in Kafka.",
        )
        QuotaWaiting(NOW_MS).write(data_dir)
        page.wait(lambda: "quota" not in page.text("#conditions"), "its end")
        page.driver.get("about:blank")


def test_a_target_that_takes_no_writes_is_named(page: Browser, settings: Settings) -> None:
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0, P1: 0})
    state = world.shard.directory(Role.DEQUEUE).state
    state.live.beat(Role.DEQUEUE, os.getpid(), NOW_MS, 0)
    Obstacles({"bills": "partitions [0]: no leader"}).write(settings.storage.data_dir)
    try:
        with listening(app_of(settings)) as address:
            open_page(page, address)
            page.wait_text("#conditions", "Ingest does not run")
            page.run("document.querySelector('#conditions summary')?.click()")
            named = "#conditions [data-name=target_bills].warn"
            page.wait_text(named, "bills takes no writes: its timers wait")
            page.wait_text(named, "partitions [0]: no leader")
            page.driver.get("about:blank")
    finally:
        world.stop()


def test_less_than_a_second_is_not_behind(page: Browser, settings: Settings) -> None:
    """An idle shard is up to a slot and a heartbeat behind: that delays nothing."""
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0, P1: 0})
    state = world.shard.directory(Role.DEQUEUE).state

    def beat(behind_ms: int) -> None:
        state.live.beat(Role.DEQUEUE, os.getpid(), NOW_MS, behind_ms)

    try:
        with listening(app_of(settings)) as address:
            beat(504)
            open_page(page, address, "shard")
            page.wait_text("#view-shard .panel[aria-label=Dequeue]", "running")
            assert field_of(page, "Behind", "#strip") == "none"
            assert field_of(page, "Behind", "#view-shard") == "none"
            beat(4_000)
            page.wait(lambda: field_of(page, "Behind", "#strip") == "4 s", "it is behind")
            assert field_of(page, "Behind", "#view-shard") == "4 s"
            page.driver.get("about:blank")
    finally:
        world.stop()


def test_before_the_first_start_there_is_a_page(page: Browser, tmp_path: Path) -> None:
    with listening(app_of(settings_of(tmp_path))) as address:
        open_page(page, address)
        page.wait_text("#conditions", "no files yet")
        assert all("503" in line for line in page.console())
        page.driver.get("about:blank")
