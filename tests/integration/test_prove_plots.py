"""The plots of `prove` in a headless Chromium. Without the browser they are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.harness.browser import REASON, Browser, browser_paths, chromium

from duewheel.prove.plots import Plot, draw, seconds_ticks


@pytest.fixture(scope="module")
def browser(require: Callable[[object, str], None]) -> Iterator[Browser]:
    paths = browser_paths()
    require(paths, REASON)
    assert paths is not None
    with chromium(paths) as started:
        yield started


OUTSIDE = """
return [...document.querySelectorAll("svg")].flatMap((svg) => {
  const { width, height } = svg.viewBox.baseVal;
  return [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.getBBox();
    return box.x < 0 || box.y < 0 || box.x + box.width > width || box.y + box.height > height;
  }).map((text) => text.textContent);
});
"""


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("most", [9.0, 99_999.0, 1_450_000.0, 400_000_000.0])
def test_no_text_of_a_plot_of_prove_is_cut(
    browser: Browser, tmp_path: Path, most: float, logarithmic: bool
) -> None:
    """Also in a font that is wider than ours."""
    times = [(0.0, 0.0), (1_000.0, most)]
    ticks = seconds_ticks(times[-1][0])
    plot = Plot("Timers", {"scheduled": times}, ticks, "s", [(1.0, "kill")], logarithmic)
    style = "<style>svg { font: 11px DejaVu Sans Mono, monospace; width: 480px; }</style>"
    file = tmp_path / "plot.html"
    file.write_text(f"<!doctype html><meta charset=utf-8>{style}{draw(plot)}", "utf-8")
    browser.driver.get(file.as_uri())
    assert browser.run("return document.querySelectorAll('svg text').length") > 6
    assert browser.run(OUTSIDE) == []
