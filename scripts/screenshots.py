"""Makes the pictures of docs/page.md: `make screenshots`.

    1. starts a broker, `duewheel run` and `serve`, as any user would
    2. sends some ten thousand timers over 40 days, and more all the time
    3. opens the page in a headless Chromium and saves what it shows, in docs/images

Needs Debian's packages chromium and chromium-driver.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.harness.browser import REASON, Browser, browser_paths, chromium  # noqa: E402
from tests.harness.config_file import write_config  # noqa: E402
from tests.harness.launcher import events, launch, run, tail, wait_until  # noqa: E402

from duewheel.client import DelayProducer  # noqa: E402
from duewheel.clock import SystemClock  # noqa: E402
from duewheel.config.settings import load  # noqa: E402
from duewheel.dev.broker import DevBroker  # noqa: E402
from duewheel.kafka.topics.admin import KafkaAdmin  # noqa: E402
from duewheel.ops.shard.status import read_status  # noqa: E402
from duewheel.runtime.dequeue_process import init_progress  # noqa: E402

IMAGES = ROOT / "docs" / "images"
NAME = "shop"
TOKEN = "a-token-for-screenshots"  # noqa: S105 - of a server that ends with this program
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
TARGETS = {  # target: share, and the usual delay
    "orders.reminders": (0.45, 15 * MINUTE),
    "payments.expire": (0.3, DAY),
    "webhooks.retry": (0.2, 2 * MINUTE),
    "trials.end": (0.05, 30 * DAY),
}
SCHEDULES = {  # name: options of `schedule set`
    "daily-digest": ("--cron", "0 7 * * MON-FRI", "--zone", "Europe/Berlin"),
    "dunning": ("--cron", "30 9 1 * *", "--zone", "Europe/Berlin", "--missed", "one"),
    "poll-carrier": ("--every", "15s"),
    "trials-report": ("--cron", "0 18 * * FRI", "--zone", "America/New_York"),
}
FORBIDDEN = ("billing.internal", "orders.remainders")  # the timer topic is not open for these
TIMERS = 12_000
WARM_S = 65  # in which the rates and the lateness of a minute become steady


class Load(threading.Thread):
    """Sends timers, the first ones at once, then some a second.

    Attributes:
        sent: whether the first ones are.
    """

    def __init__(self, servers: str) -> None:
        super().__init__(name="load", daemon=True)
        self._servers, self._rng, self._number = servers, random.Random(1), 1000
        self.sent, self.stopping = threading.Event(), threading.Event()

    def run(self) -> None:
        """See threading.Thread."""
        with DelayProducer(f"{NAME}.timers", bootstrap_servers=self._servers) as producer:
            for _ in range(TIMERS):
                self._send(producer, self._rng.expovariate(1) + 0.02)
            self._send_spike(producer)
            for target in FORBIDDEN * 3:
                self._schedule(producer, target, SystemClock().now_ms() + MINUTE)
            self.sent.set()
            while not self.stopping.wait(0.05):
                self._send(producer, self._rng.expovariate(1) * 0.4)
                self._send(producer, 0.0)

    def _send(self, producer: DelayProducer, factor: float) -> None:
        targets, shares = zip(*((name, each[0]) for name, each in TARGETS.items()), strict=True)
        (target,) = self._rng.choices(targets, shares)
        delay_ms = min(39 * DAY, 1_000 + round(TARGETS[target][1] * factor))
        self._schedule(producer, target, SystemClock().now_ms() + delay_ms)

    def _send_spike(self, producer: DelayProducer) -> None:
        """All reminders of one campaign are due in one instant."""
        due_ms = (SystemClock().now_ms() // HOUR + 1) * HOUR
        for _ in range(400):
            self._schedule(producer, "orders.reminders", due_ms)

    def _schedule(self, producer: DelayProducer, target: str, due_ms: int) -> None:
        self._number += 1
        order = f"order-{self._number}"
        value = f'{{"order": {self._number}, "customer": "c-{self._rng.randrange(900)}"}}'
        producer.schedule(
            target,
            value.encode(),
            key=order.encode(),
            headers=[("content-type", b"application/json")],
            deliver_at=due_ms,
            id=f"{target.partition('.')[0]}-{self._number}",
        )


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A shard of real processes with timers in it, and its API; yields the address of the page."""
    token = folder / "token"
    token.write_text(TOKEN)
    with ExitStack() as stack:
        broker = stack.enter_context(DevBroker())
        config = write_config(
            folder,
            broker.bootstrap_servers,
            NAME,
            timer={
                "slots": 2_097_152,
                "roll_window": "24h",
                "margin": "1h",
                "targets": list(TARGETS),
                "reply_topic": f"{NAME}.replies",
                "topic": {f"{NAME}.timers": {"recurring": True}},
                "receipts_topic": f"{NAME}.receipts",
            },
            storage={"data_dir": "duewheel-data"},  # relative: no picture has a path of this host
            serve={"port": 0, "token_file": str(token), "show_bodies": True},
            log={"format": "json"},
        )
        settings = load(config)
        with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
            admin.init_topics(settings, partitions=4)
            for target in TARGETS:
                admin.create_topic(target, 2)
        init_progress(settings)
        for command in ("run", "serve"):
            process = launch(config, command)
            stack.callback(process.end, signal.SIGTERM, 60)
        load_thread = Load(broker.bootstrap_servers)
        load_thread.start()
        stack.callback(load_thread.stopping.set)
        wait_until(
            lambda: events(folder / "serve.log", "serving"), lambda: tail(folder / "serve.log")
        )
        wait_until(lambda: is_ready(config), lambda: tail(folder / "run.log"))
        set_schedules(config)
        yield events(folder / "serve.log", "serving")[0]["url"] + "/"


def set_schedules(config: Path) -> None:
    """Sets them by the command, and pauses the last one."""
    for name, options in SCHEDULES.items():
        message = ("--target", "orders.reminders", "--key", name, "--value", "{}")
        done = run(config, "schedule", "set", name, *options, *message)
        assert done.returncode == 0, done.stderr
    done = run(config, "schedule", "pause", name, "--note", "until the audit")
    assert done.returncode == 0, done.stderr


def is_ready(config: Path) -> bool:
    """Whether the shard does its work, and has timers."""
    settings = load(config)
    if not settings.storage.data_dir.exists():
        return False
    found = read_status(settings, SystemClock())
    return found.ready and (found.pending or 0) > TIMERS // 2


def take(browser: Browser, address: str) -> None:
    """Takes the pictures."""
    browser.resize(1400, 900, "light")
    spike_ms = (SystemClock().now_ms() // HOUR + 1) * HOUR
    browser.driver.get(f"{address}#pending?range=hour&from={spike_ms}&to={spike_ms + MINUTE}")
    time.sleep(WARM_S)
    save(browser, "page-pending")
    view(browser, "pending?topic=trials.end", "trials")
    browser.run(
        "document.querySelector('#view-pending .list tbody tr:nth-child(4) button').click()"
    )
    browser.wait_text("dialog.side", "Message")
    browser.run("document.querySelector('dialog.side .grave').click()")
    browser.wait_text("dialog.ask", "cannot be undone")
    save(browser, "page-cancel")
    browser.run("document.querySelectorAll('dialog').forEach((dialog) => dialog.close())")
    browser.resize(1400, 480, "light")
    view(browser, "schedules", "daily-digest", "page-schedules")
    since_ms = SystemClock().now_ms() - 30_000
    view(browser, f"receipts?from={since_ms}", "orders.reminders", "page-receipts")
    browser.resize(1400, 900, "dark")
    view(browser, "dead-letters", "target_not_allowed", "page-dead-letters")
    view(browser, "shard", "orders.reminders", "page-shard")
    browser.resize(360, 780, "dark", scale=2)
    view(browser, "pending?range=day", "timers of")
    browser.run("document.querySelector('#view-pending .check input').click()")  # logarithmic
    save(browser, "page-narrow")


def view(browser: Browser, place: str, text: str, picture: str = "") -> None:
    """Goes to a place of the page, waits for a text in its view, and saves a picture if named."""
    browser.run("location.hash = arguments[0]; scrollTo(0, 0)", place)
    browser.wait_text(f"#view-{place.partition('?')[0]}", text)
    if picture:
        save(browser, picture)


def save(browser: Browser, name: str) -> None:
    """Saves a picture once the page has settled."""
    time.sleep(2.5)
    browser.run("document.activeElement?.blur()")
    path = IMAGES / f"{name}.png"
    path.write_bytes(browser.save())
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size >> 10} KiB")


def main() -> int:
    """Returns the exit code."""
    paths = browser_paths()
    if paths is None:
        print(REASON, file=sys.stderr)
        return 2
    IMAGES.mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="duewheel-page-"))
        os.chdir(folder)
        address = stack.enter_context(served(Path(folder)))
        take(stack.enter_context(chromium(paths)), address)
    return 0


if __name__ == "__main__":
    sys.exit(main())
