"""Runs the suites of an audit with Great Expectations, over tables in memory.

The library runs on pandas, in this process: a suite over 100,000 rows takes a quarter of a second
and some 60 MB; on Spark's data frames it takes ten times as long, and gigabytes.

Rules are checked chunk by chunk: each result object is reduced to a `Checked` at once, and a
`Tally` adds these up, so that memory does not grow with the range. The suite across rows runs once,
as a checkpoint of the project (data_docs.py has the rest of the project).
"""

from __future__ import annotations

import logging
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from duewheel.api.audit import ExpectationResult
from duewheel.errors import ConfigError, DuewheelError
from duewheel.schemas.arrays import Int64
from duewheel.schemas.request.acceptance_rules import filled_in

_pa: Any = pa

EXAMPLES_MAX = 20
EXAMPLE_CHARACTERS = 200
_OBSERVED_CHARACTERS = 2_000  # of an expectation, or why it cannot be checked

_SOURCE = "duewheel"
_IN_MEMORY: dict[str, Any] = {"mode": "ephemeral"}
_CHATTY = "great_expectations.data_context.types.base"  # sets itself to INFO


Result = Any  # an ExpectationValidationResult of the library
Check = Callable[[Mapping[str, Any], Mapping[str, Any], pa.Table], list[Result]]


class Unchecked(NamedTuple):
    """An expectation that cannot be checked on a table."""

    reason: str

    @classmethod
    def because(cls, kind: str, why: str) -> Unchecked:
        """Of an expectation of this type; `why` may quote any value of the table."""
        return cls(f"{kind} cannot be checked: {shortened(why, _OBSERVED_CHARACTERS)}")


class GreatExpectations:
    """The library, set up once: importing it takes two seconds. Not thread-safe.

    Example:
        results = GreatExpectations().check(suite, {"max_delay_ms": 1000}, table)
    """

    def __init__(self, project: Path | None = None) -> None:
        """Opens the file context in the folder `project`, made if it is missing; without one, a
        context in memory, which keeps nothing.

        Raises:
            ConfigError: the project cannot be used.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import great_expectations as gx
            from great_expectations.data_context.types.base import ProgressBarsConfig
            from great_expectations.exceptions.exceptions import GreatExpectationsError

            logging.getLogger(_CHATTY).setLevel(logging.WARNING)
            mode = {"mode": "file", "project_root_dir": project} if project else _IN_MEMORY
            try:
                self.context: Any = gx.get_context(**mode)
                self._definition = _rows(self.context)
            except (GreatExpectationsError, OSError) as error:
                where = f"Great Expectations' project in {project} cannot be used"
                raise ConfigError(f"{where}: {error}") from error
            self.context.variables.progress_bars = ProgressBarsConfig(globally=False)
        self._gx = gx

    def check(
        self, suite: Mapping[str, Any], parameters: Mapping[str, Any], table: pa.Table
    ) -> list[Result]:
        """Checks a suite (acceptance_rules.py) on a table of whole numbers and text, dictionaries
        of them too; returns the result of each expectation, in the suite's order.

        Raises:
            DuewheelError: an expectation cannot be checked on this table.
        """
        return _all_checked(self._validated(filled_in(suite, parameters), self._batch(table)))

    def check_each(
        self, expectations: Sequence[Mapping[str, Any]], table: pa.Table, seconds_max: float
    ) -> list[Result | Unchecked]:
        """Checks expectations that anyone has written, one after the other, because some mistakes
        end the check of the whole suite. The reason is in the place of a result. Together they take
        `seconds_max` of processor time; each has an equal share of what those before it have left.
        Main thread only.
        """
        batch, results = self._batch(table), list[Result | Unchecked]()
        until_s = time.process_time() + seconds_max
        for place, each in enumerate(expectations):
            left_s = until_s - time.process_time()
            try:
                with _at_most(left_s / (len(expectations) - place)):
                    (found,) = self._validated([each], batch)
            except _OutOfTime:
                why = f"it takes more than its share of {seconds_max:g} s"
                found = Unchecked.because(each["type"], why)
            except Exception as error:  # noqa: BLE001 - pydantic's, or any of the library
                found = Unchecked.because(each["type"], " ".join(str(error).split()))
            results.append(found)
        return results

    def _batch(self, table: pa.Table) -> Any:
        return self._definition.get_batch({"dataframe": _frame(table)})

    def _validated(
        self, expectations: Sequence[Mapping[str, Any]], batch: Any
    ) -> list[Result | Unchecked]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            suite = self._suite("suite", expectations)
            result = batch.validate(suite, result_format=_format("COMPLETE"))
        return _in_order(result, expectations)

    def run_checkpoint(
        self,
        name: str,
        run: Any,
        suite: Mapping[str, Any],
        parameters: Mapping[str, Any],
        table: pa.Table,
    ) -> list[Result]:
        """Checks a suite by the project's checkpoint of this name, which stores the result, updates
        Data Docs, and runs the actions that its owner has added. Otherwise as `check`.
        """
        gx, context = self._gx, self.context
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expectations = filled_in(suite, parameters)
            kept = context.suites.add_or_update(self._suite(name, expectations))
            try:
                checkpoint = context.checkpoints.get(name)
            except gx.exceptions.DataContextError:
                definition = context.validation_definitions.add_or_update(
                    gx.ValidationDefinition(name=name, data=self._definition, suite=kept)
                )
                update = gx.checkpoint.UpdateDataDocsAction(name="update_data_docs")
                checkpoint = context.checkpoints.add(
                    gx.Checkpoint(
                        name=name,
                        validation_definitions=[definition],
                        actions=[update],
                        result_format=_format("SUMMARY"),
                    )
                )
            results = checkpoint.run({"dataframe": _frame(table)}, run_id=run).run_results
        (result,) = [each for each in results.values() if each.suite_name == name]
        return _all_checked(_in_order(result, expectations))

    def _suite(self, name: str, expectations: Sequence[Mapping[str, Any]]) -> Any:
        made = [
            {
                "type": each["type"],
                "kwargs": each["kwargs"],
                "severity": each.get("severity", "critical"),
                "notes": each["meta"]["reason"],
                "meta": {"place": place},
            }
            for place, each in enumerate(expectations)
        ]
        return self._gx.ExpectationSuite(name=name, expectations=made)


class _OutOfTime(BaseException):
    """No Exception: the library would take it for one of an expectation, and go on."""


def _out_of_time(*_: object) -> NoReturn:
    raise _OutOfTime


@contextmanager
def _at_most(processor_s: float) -> Iterator[None]:
    """Raises _OutOfTime after so much processor time of this process. Python's `re`, too, heeds a
    signal while it matches, after seconds for each MB of a text at the latest.
    """
    before = signal.signal(signal.SIGPROF, _out_of_time)
    signal.setitimer(signal.ITIMER_PROF, max(processor_s, 0.001))  # 0 would be no limit
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _rows(context: Any) -> Any:
    """Returns the project's definition of a batch. It is added once: a change of the project's file
    at each audit could meet that of another shard's audit.
    """
    try:
        return context.data_sources.get(_SOURCE).get_asset("rows").get_batch_definition("all")
    except LookupError:
        asset = context.data_sources.add_or_update_pandas(_SOURCE).add_dataframe_asset("rows")
        return asset.add_batch_definition_whole_dataframe("all")


def _format(kind: str) -> dict[str, Any]:
    return {
        "result_format": kind,
        "return_unexpected_index_query": False,
        "partial_unexpected_count": EXAMPLES_MAX,
    }


def _frame(table: pa.Table) -> Any:
    """Converts a table to pandas; whole numbers that may be null stay whole numbers."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind: Any = column.type
        plain: Any = column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column
        columns[name] = plain.cast(pa.int64()) if pa.types.is_integer(plain.type) else plain
    return pa.table(columns).to_pandas(
        types_mapper=lambda kind: pd.Int64Dtype() if kind == pa.int64() else None
    )


def _in_order(result: Any, expectations: Sequence[Mapping[str, Any]]) -> list[Result | Unchecked]:
    by_place = {each.expectation_config.meta["place"]: each for each in result.results}
    # The library leaves out what it does not know.
    return [
        _or_reason(by_place[place])
        if place in by_place
        else Unchecked.because(each["type"], f"there is no {_unknown(each)}")
        for place, each in enumerate(expectations)
    ]


def _unknown(expectation: Mapping[str, Any]) -> str:
    severity = expectation.get("severity", "critical")
    known = severity in ("info", "warning", "critical")
    return "such expectation" if known else f"severity {severity!r}"


def _or_reason(result: Result) -> Result | Unchecked:
    # Several exceptions stand below names of their own.
    if result.exception_info.get("raised_exception", True):
        return Unchecked.because(result.expectation_config.type, _reason(result.exception_info))
    return result


def _all_checked(results: list[Result | Unchecked]) -> list[Result]:
    for each in results:
        if isinstance(each, Unchecked):
            raise DuewheelError(each.reason)
    return results


def failing(result: Result) -> Int64:
    """Returns the indexes of the rows that fail; of a checkpoint's result only the first."""
    some = result.result.get("partial_unexpected_index_list", ())
    return np.array(result.result.get("unexpected_index_list", some), np.int64)


def _reason(info: Mapping[str, Any]) -> str:
    """Returns the message of an expectation's exception, or of the first of several."""
    if "exception_message" not in info:
        info = next((each for each in info.values() if isinstance(each, Mapping)), {})
    return str(info.get("exception_message") or "it gives no result")


def shortened(value: Any, characters: int = EXAMPLE_CHARACTERS) -> Any:
    """Makes a value of a message fit for JSON, and text of it if it is longer than that: producers
    write values of any size, and each result has many and is kept.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    text = str(plain)
    return plain if len(text) <= characters else text[:characters] + "…"


@dataclass
class Tally:
    """Adds up one expectation over all chunks of a range.

    Attributes:
        expectation: as in the suite, with values in the place of parameters.
        rows: nulls included.
        nulls: rows without a value, if the expectation skips nulls.
        observed: of the last chunk: an expectation on the whole table gets that as one chunk.
        examples: of failing rows: the source of each, and its shortened value.
        checked: without it `observed` is the reason why not.
    """

    expectation: Mapping[str, Any]
    success: bool = True
    rows: int = 0
    nulls: int = 0
    failed: int = 0
    observed: Any = None
    examples: list[tuple[str, Any]] = field(default_factory=list)
    checked: bool = True

    def add(self, result: Result, names: Callable[[Int64], list[str]]) -> None:
        """Adds the result of one more chunk; `names` gives the sources of its rows."""
        found = result.result
        self.success = self.success and bool(result.success)
        self.observed = shortened(found.get("observed_value"), _OBSERVED_CHARACTERS)
        if self.expectation["type"] == "expect_table_row_count_to_be_between":
            self.rows = int(self.observed)
        self.rows += int(found.get("element_count", 0))
        self.nulls += int(found.get("missing_count", 0))
        self.failed += int(found.get("unexpected_count", 0))
        values = list(map(shortened, found.get("partial_unexpected_list", ())))
        sources = names(failing(result)[: len(values)])
        # Some expectations name values, but no rows: in a set of distinct values there is none.
        named = list(zip(sources, values, strict=False))
        self.examples = (self.examples + named)[:EXAMPLES_MAX]

    def fail(self, reason: str) -> None:
        """Counts it as failed, without a row."""
        self.checked, self.success, self.observed = False, False, reason

    def result(self) -> ExpectationResult:
        """Returns the entry in an audit's result."""
        meta = self.expectation["meta"]
        return ExpectationResult(
            type=self.expectation["type"],
            column=self.expectation["kwargs"].get("column"),
            code=meta["code"],
            reason=meta["reason"],
            severity=self.expectation.get("severity", "critical"),
            success=self.success,
            rows=self.rows,
            failed=self.failed,
            observed=self.observed,
            examples=[source for source, _ in self.examples],
        )


def tallies(suite: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[Tally]:
    """Makes an empty tally of each expectation."""
    return [Tally(each) for each in filled_in(suite, parameters)]
