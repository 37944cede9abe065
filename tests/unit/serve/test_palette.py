"""The contrast of the page's colours, computed as WCAG 2 has it, in light and in dark."""

from __future__ import annotations

import re

import pytest

from duewheel.serve.page import page_files

FILES = page_files()
TEXT, SHAPE = 4.5, 3.0  # level AA
PAIRS = [
    *(
        (text, ground, TEXT)
        for text in ("text", "muted", "accent")
        for ground in ("ground", "surface", "raised")
    ),
    *(
        (text, ground, TEXT)
        for text in ("good", "warn", "bad")
        for ground in ("ground", "surface", "raised")
    ),
    *(("text", ground, TEXT) for ground in ("warn-ground", "bad-ground")),
    *(("accent", ground, TEXT) for ground in ("warn-ground", "bad-ground")),
    ("on-accent", "accent", TEXT),
    ("on-bad", "bad", TEXT),
    *(
        (shape, ground, SHAPE)
        for shape in ("bar", "bar-chosen", "edge")
        for ground in ("surface", "raised")
    ),
]


def palette(place: int) -> dict[str, str]:
    text = FILES["palette.css"].decode()
    colours = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", text)
    return {name: both[place] for name, *both in colours}


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lower, higher = sorted((luminance(one), luminance(other)))
    return (higher + 0.05) / (lower + 0.05)


def test_contrast_of_known_colours() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_apart(place: int) -> None:
    colours = palette(place)
    weak = {
        f"{one} on {ground}": round(contrast(colours[one], colours[ground]), 2)
        for one, ground, least in PAIRS
        if contrast(colours[one], colours[ground]) < least
    }
    assert weak == {}


def test_colours_are_in_the_palette_alone() -> None:
    for name in ("layout.css", "parts.css"):
        text = FILES[name].decode()
        assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[;, )])", text) == []
        used = set(re.findall(r"var\(--([\w-]+)\)", text))
        assert used <= palette(0).keys()
