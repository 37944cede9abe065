"""A headless Chromium of the system, driven by Selenium, and an app that serves the page to it."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chrome.webdriver import WebDriver

REASON = "no Chromium: install Debian's packages chromium and chromium-driver"
INTERACTIVE = {"button", "checkbox", "combobox", "link", "radio", "spinbutton", "textbox"}
WAIT_S = 15.0


def browser_paths() -> tuple[str, str] | None:
    """Chromium and its driver; None without both."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return None if browser is None or driver is None else (browser, driver)


class Browser:
    """A window, and what has happened in it."""

    def __init__(self, driver: WebDriver) -> None:
        self.driver = driver
        driver.execute_cdp_cmd("Performance.enable", {})

    def resize(self, width: int, height: int, scheme: str, scale: float = 1) -> None:
        """Sets the size, the system's colour scheme, and a preference of little motion."""
        screen = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments: Any) -> Any:
        """The result of a script."""
        return self.driver.execute_script(script, *arguments)

    def keys(self, *names: str) -> None:
        """Presses keys in whatever has the focus."""
        self.driver.switch_to.active_element.send_keys(*names)

    def press_until(self, key: str, focused: str) -> None:
        """Presses a key until an element that matches a selector has the focus."""
        for _ in range(200):
            if self.run("return document.activeElement.matches(arguments[0])", focused):
                return
            self.keys(key)
        raise AssertionError(f"no way to {focused} by keys: {self.text('body')}")

    def text(self, selector: str) -> str:
        """The text of the first element that matches."""
        found = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return str(found)

    def wait(self, reached: Callable[[], object], what: str) -> None:
        """Waits until something is so."""
        end_s = time.monotonic() + WAIT_S
        while not reached():
            assert time.monotonic() < end_s, f"{what}: {self.text('body')}"
            time.sleep(0.05)

    def wait_text(self, selector: str, text: str) -> None:
        """Waits until an element has a text."""
        self.wait(lambda: text in self.text(selector), f"{selector} never has {text!r}")

    def console(self) -> list[str]:
        """The lines of the console since it was last read."""
        log: Any = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [f"{line['level']}: {line['message']}" for line in log]

    def requests(self) -> list[str]:
        """The addresses of all requests since they were last read."""
        log: Any = self.driver.get_log("performance")  # type: ignore[no-untyped-call]
        messages = [json.loads(line["message"])["message"] for line in log]
        sent = [each for each in messages if each["method"] == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"] for each in sent]

    def unnamed(self) -> list[str]:
        """The controls without a name for screen readers, by the accessibility tree."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        controls = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and node.get("role", {}).get("value") in INTERACTIVE
        ]
        assert controls, "no control was found"
        return [role for role, name in controls if not name.strip()]

    def save(self) -> bytes:
        """A picture of what is seen."""
        return self.driver.get_screenshot_as_png()


@contextmanager
def chromium(paths: tuple[str, str]) -> Iterator[Browser]:
    """Starts a browser for the length of a with block."""
    options = Options()
    options.binary_location = paths[0]
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(paths[1]))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@contextmanager
def listening(app: FastAPI, **tls: Any) -> Iterator[str]:
    """Serves an app on a free port of this host, with uvicorn's `tls`; yields its address.

    FastAPI builds an app's routes at its first request, and pydantic fails when two apps of one
    process do so at once: they are built before the app has a thread.
    """
    app.openapi()
    quiet: dict[str, Any] = {"log_config": None, "access_log": False, "ws": "none"}
    config = uvicorn.Config(app, port=0, http="h11", **quiet, **tls)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="page-server")
    thread.start()
    try:
        end_s = time.monotonic() + WAIT_S
        while not server.started:
            assert thread.is_alive() and time.monotonic() < end_s, "the server does not start"
            time.sleep(0.02)
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
