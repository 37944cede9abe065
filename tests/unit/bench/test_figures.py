from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bench.figures import Figure, Recorder, read, write


def test_runs_become_one_figure_with_their_median(tmp_path: Path) -> None:
    recorder = Recorder({"commit": "abc"})
    for value in (3.0, 1.0, 2.00004):
        recorder.add("duewheel", "enqueue", "rate", "timers/s", value, {"timers": 10})
    expected = Figure(
        "duewheel",
        "enqueue",
        "rate",
        "timers/s",
        2.0,
        [3.0, 1.0, 2.0],
        {"timers": 10, "commit": "abc"},
    )
    assert recorder.figures == [expected]
    write(tmp_path / "out", recorder.figures)
    assert read(tmp_path / "out") == [expected]


VALID = {
    "system": "a",
    "workload": "b",
    "metric": "c",
    "unit": "d",
    "value": 1.0,
    "runs": [1.0],
    "config": {},
}


@pytest.mark.parametrize(
    "line", [{"system": "a"}, VALID | {"runs": []}, VALID | {"runs": [2.0]}, VALID | {"more": 1}]
)
def test_a_line_of_another_schema_is_refused(line: dict[str, object]) -> None:
    assert Figure.parse(json.dumps(VALID)).value == 1.0
    with pytest.raises(ValueError, match="not"):
        Figure.parse(json.dumps(line))
