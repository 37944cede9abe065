"""Great Expectations, run by an audit: suites over tables in memory.

It runs on pandas, in this process: a suite over 100,000 rows takes a quarter of a second and some
60 MB; on Spark's data frames it takes ten times as long, and gigabytes. Its context lives in memory
only: nothing is stored, nothing is sent.

What it finds is taken out of its result objects at once (`Checked`) and added up over the pieces
of a range (`Tally`), so that memory does not grow with the range.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from duewheel.errors import DuewheelError
from duewheel.schemas.arrays import Int64
from duewheel.schemas.request.rules import filled_in

_pa: Any = pa

EXAMPLES_MAX = 20

_CHATTY = "great_expectations.data_context.types.base"  # sets itself to INFO


@dataclass(frozen=True, slots=True)
class Checked:
    """What one expectation says of a table.

    Attributes:
        success: whether it holds.
        rows: how many were looked at, nulls included.
        nulls: how many of them had no value, if the expectation passes those over.
        failing: indexes of the rows that fail; none where the table as a whole is judged.
        values: of the first of these rows.
        observed: of the table as a whole, else None.
    """

    success: bool
    rows: int
    nulls: int
    failing: Int64
    values: Sequence[Any]
    observed: Any


class GreatExpectations:
    """The library, set up once: importing it takes two seconds. Not thread-safe.

    Example:
        found = GreatExpectations().check(suite, {"max_delay_ms": 1000}, table)
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import great_expectations as gx
            from great_expectations.data_context.types.base import ProgressBarsConfig

            logging.getLogger(_CHATTY).setLevel(logging.WARNING)
            context = gx.get_context(mode="ephemeral")
            context.enable_analytics(enable=False)
            context.variables.progress_bars = ProgressBarsConfig(globally=False)
            asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
            self._definition = asset.add_batch_definition_whole_dataframe("all")
        self._suite_of = gx.ExpectationSuite

    def check(
        self, suite: Mapping[str, Any], parameters: Mapping[str, Any], table: pa.Table
    ) -> list[Checked]:
        """What each expectation of a suite says, in the suite's order.

        Args:
            suite: as in `duewheel.schemas.request.rules`.
            parameters: what {"$PARAMETER": name} in it stands for.
            table: whole numbers and text, dictionaries of them too.

        Raises:
            DuewheelError: an expectation cannot be checked on this table.
        """
        expectations = [
            {"type": each["type"], "kwargs": each["kwargs"], "meta": {"place": place}}
            for place, each in enumerate(filled_in(suite, parameters))
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batch = self._definition.get_batch({"dataframe": _frame(table)})
            result = batch.validate(
                self._suite_of(name="suite", expectations=expectations),
                result_format={
                    "result_format": "COMPLETE",
                    "return_unexpected_index_query": False,
                    "partial_unexpected_count": EXAMPLES_MAX,
                },
            )
        checked: dict[int, Checked] = {}
        for each in result.results:
            assert each.expectation_config is not None
            checked[each.expectation_config.meta["place"]] = _checked(each, table.num_rows)
        return [checked[place] for place in range(len(expectations))]


def _frame(table: pa.Table) -> Any:
    """As pandas: whole numbers that may be null stay whole numbers."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind: Any = column.type
        plain: Any = column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column
        columns[name] = plain.cast(pa.int64()) if pa.types.is_integer(plain.type) else plain
    return pa.table(columns).to_pandas(
        types_mapper=lambda kind: pd.Int64Dtype() if kind == pa.int64() else None
    )


def _checked(result: Any, rows: int) -> Checked:
    config, checked = result.expectation_config, result.result
    if result.exception_info.get("raised_exception") or not checked:
        raise DuewheelError(f"{config.type} cannot be checked: {_reason(result.exception_info)}")
    return Checked(
        success=bool(result.success),
        rows=int(checked.get("element_count", rows)),
        nulls=int(checked.get("missing_count", 0)),
        failing=np.array(checked.get("unexpected_index_list", ()), np.int64),
        values=[_plain(value) for value in checked.get("partial_unexpected_list", ())],
        observed=checked.get("observed_value") if "element_count" not in checked else None,
    )


def _reason(info: Mapping[str, Any]) -> str:
    """The message of an expectation's exception, or of the first of several."""
    if "exception_message" not in info:
        info = next((each for each in info.values() if isinstance(each, Mapping)), {})
    return str(info.get("exception_message") or "it gives no result")


def _plain(value: Any) -> Any:
    """For JSON."""
    return value.item() if isinstance(value, np.generic) else value


@dataclass
class Tally:
    """One expectation over all pieces of a range.

    Attributes:
        expectation: as in the suite, with values in the place of parameters.
        success: whether it held everywhere.
        rows, nulls, observed: as in Checked.
        failed: how many rows fail.
        examples: of failing rows: where they lie, and what the judged column has there.
    """

    expectation: Mapping[str, Any]
    success: bool = True
    rows: int = 0
    nulls: int = 0
    failed: int = 0
    observed: Any = None
    examples: list[tuple[str, Any]] = field(default_factory=list)

    def add(self, checked: Checked, names: Sequence[str]) -> None:
        """One more piece.

        Args:
            checked: what was found in it.
            names: where the first of its failing rows lie, one for each of `checked.values`.
        """
        self.success = self.success and checked.success
        self.rows += checked.rows
        self.nulls += checked.nulls
        self.failed += len(checked.failing)
        self.observed = checked.observed
        room = EXAMPLES_MAX - len(self.examples)
        self.examples += list(zip(names, checked.values, strict=True))[:room]

    def as_json(self) -> dict[str, Any]:
        """For the result of an audit."""
        meta = self.expectation["meta"]
        return {
            "type": self.expectation["type"],
            "column": self.expectation["kwargs"].get("column"),
            "code": meta["code"],
            "reason": meta["reason"],
            "severity": self.expectation.get("severity", "critical"),
            "success": self.success,
            "rows": self.rows,
            "failed": self.failed,
            "observed": self.observed,
            "examples": [source for source, _ in self.examples],
        }


def tallies(suite: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[Tally]:
    """One of each expectation, of nothing yet."""
    return [Tally(each) for each in filled_in(suite, parameters)]
