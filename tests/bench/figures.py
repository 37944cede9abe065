"""The one schema of all measurements: a line of JSON for each metric of each workload and system.

    {"system": "duewheel", "workload": "spike of 100,000", "metric": "due to last received",
     "unit": "s", "value": 0.45, "runs": [0.45, 0.49, 0.44], "config": {...}}

`value` is the median of `runs`. `config` holds what the workload did, the commit, and the machine
with its load before and after: a figure says something beside another one of the same run.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_DIGITS = 4


@dataclass(frozen=True)
class Figure:
    """One metric of one workload on one system.

    Attributes:
        runs: in the order in which they were measured.
        config: what is needed to repeat them.
    """

    system: str
    workload: str
    metric: str
    unit: str
    value: float
    runs: list[float]
    config: dict[str, Any]

    @classmethod
    def parse(cls, line: str) -> Figure:
        """
        Raises:
            ValueError: the line is none of this schema.
        """
        try:
            figure = cls(**json.loads(line))
        except TypeError as error:
            raise ValueError(f"not a figure: {line[:100]}: {error}") from error
        if not figure.runs or figure.value != _median(figure.runs):
            raise ValueError(f"the value is not the median of the runs: {line[:100]}")
        return figure

    def line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def read(path: Path) -> list[Figure]:
    return [Figure.parse(line) for line in path.read_text("utf-8").splitlines()]


def write(path: Path, figures: Iterable[Figure]) -> None:
    path.write_text("".join(f"{figure.line()}\n" for figure in figures), "utf-8")


@dataclass
class Recorder:
    """Collects the values of repeated workloads.

    Attributes:
        config: of the whole run: added to that of every figure.
        prefix: of the names of all workloads.
    """

    config: dict[str, Any] = field(default_factory=dict)
    prefix: str = ""
    _runs: dict[tuple[str, str, str, str], list[float]] = field(default_factory=dict)
    _configs: dict[tuple[str, str, str, str], Mapping[str, Any]] = field(default_factory=dict)

    def add(
        self,
        system: str,
        workload: str,
        metric: str,
        unit: str,
        value: float,
        config: Mapping[str, Any],
    ) -> None:
        """One more run."""
        key = (system, self.prefix + workload, metric, unit)
        self._runs.setdefault(key, []).append(float(f"{value:.{_DIGITS}g}"))
        self._configs[key] = config

    @property
    def figures(self) -> list[Figure]:
        return [
            Figure(*key, _median(runs), runs, {**self._configs[key], **self.config})
            for key, runs in self._runs.items()
        ]


def _median(runs: list[float]) -> float:
    return float(f"{statistics.median(runs):.{_DIGITS}g}")
