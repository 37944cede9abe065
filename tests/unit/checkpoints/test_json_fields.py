"""Records in JSON: what is read has the declared types, or is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from duewheel.checkpoints.json_fields import MISSHAPEN, StateFile, from_json, to_json


class Colour(Enum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Part(NamedTuple):
    size: int
    open: bool = False


SMALL = Part(1)


@dataclass(frozen=True, slots=True)
class Whole(StateFile):
    file_name: ClassVar[str] = "whole"

    count: int
    colour: Colour = Colour.RED
    number: Number = Number.ONE
    names: tuple[str, ...] = ()
    pair: tuple[int, str] = (1, "a")
    maybe: int | None = None
    part: Part = SMALL
    by_name: Mapping[str, Part] = field(default_factory=dict)
    marks: Mapping[tuple[str, int], int] = field(default_factory=dict)


WHOLE = Whole(
    *(2**40, Colour.RED, Number.ONE, ("x", "ä"), (3, "b"), 4, Part(5, open=True)),
    by_name={"p": Part(6)},
    marks={("orders", 11): 120, ("orders", 0): 7, ("a.b", 2): 0},
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert Whole.read(tmp_path) is None
    WHOLE.write(tmp_path)
    assert Whole.read(tmp_path) == WHOLE
    path = tmp_path / "whole"
    path.write_bytes(path.read_bytes().replace(b"orders", b"borders"))
    assert Whole.read(tmp_path) is None


def test_a_version_may_add_fields() -> None:
    raw = json.loads(json.dumps(to_json(WHOLE)))
    assert from_json(Whole, raw | {"of_tomorrow": 1}) == WHOLE


MISFITS: dict[str, list[Any]] = {
    "count": ["1", 1.0, True, None, 2**63, []],
    "colour": ["blue", 1, None],
    "number": [2, True, "1"],
    "names": ["xy", [1], {"x": "y"}, None, ["\ud800"]],
    "pair": [[1], [1, "a", "b"], ["a", 1], "1a"],
    "maybe": ["", False],
    "part": [{"size": 1}, {"size": 1, "open": 0}, [1, True]],
    "by_name": [[], {"p": 1}, "p"],
    "marks": [{"t": 1}, {"t": {"x": 1}}, {"t": {"-1": 1}}, [1]],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in MISFITS.items() for value in values]
)
def test_another_type_is_refused(name: str, value: Any) -> None:
    raw = json.loads(json.dumps(to_json(WHOLE)))
    with pytest.raises(MISSHAPEN):
        from_json(Whole, {**raw, name: value})


@pytest.mark.parametrize("raw", [None, [], 1, "text", {}])
def test_what_is_no_record_is_refused(raw: object) -> None:
    with pytest.raises(MISSHAPEN):
        from_json(Whole, raw)
