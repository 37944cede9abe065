"""The rules of an acceptable timer: a Great Expectations suite, compiled to Arrow predicates.

The suite (timer_suite.json) is the one definition. Great Expectations itself can run it, over a
sample or in a test. Ingest runs the compiled form, which gives the same verdict row by row at a
hundredth of the cost. Not every suite compiles; the limits are checked once, at start:

- only expectation types that check a row by itself;
- only arguments with the same meaning in both, so no `mostly`, no row conditions;
- only patterns with the same meaning in Python's and Arrow's regular expressions
  (name_patterns.py). Both search anywhere in the value.

As in Great Expectations a null passes every rule except "not null". The first rule in the suite
that a row fails gives the reason: `meta.code` for programs, `meta.reason` for people. In a reason
{parameter} stands for a parameter's value and {value} for the checked number.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.errors import ConfigError
from duewheel.schemas.arrays import Bool, Int32
from duewheel.schemas.batches import ACCEPTED
from duewheel.schemas.name_patterns import for_arrow, require_portable
from duewheel.schemas.request.request_columns import RULE_COLUMNS

_pc: Any = pyarrow.compute
_pa: Any = pa

Suite = Mapping[str, Any]
Predicate = Callable[[Any], Any]

VALUE = b"{value}"

_PLACEHOLDER = re.compile(r"\{(\w*)\}")


def load_suite(name: str = "timer") -> dict[str, Any]:
    """A suite that ships with duewheel, in the form of `ExpectationSuite.to_json_dict`. "timer" has
    the rules of an acceptable timer; "audit" has rules across rows, which only an audit checks.
    """
    text = importlib.resources.files(__package__).joinpath(f"{name}_suite.json").read_text("utf-8")
    suite: dict[str, Any] = json.loads(text)
    return suite


def filled_in(suite: Suite, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The expectations of a suite with values instead of its parameters, in reasons too.

    Raises:
        ConfigError: a parameter has no value.
    """
    return [
        {
            **each,
            "kwargs": {name: _resolve(value, parameters) for name, value in each["kwargs"].items()},
            "meta": {**each["meta"], "reason": _worded(each["meta"]["reason"], parameters)},
        }
        for each in suite["expectations"]
    ]


@dataclass(frozen=True, slots=True)
class Rule:
    """One expectation, compiled. `code` and `reason` say why a row that fails it is rejected; the
    reason may have VALUE once.
    """

    code: str
    reason: str
    column: str  # the column that it checks
    predicate: Predicate  # an Arrow array of values → a boolean array: which of them are good
    nulls_pass: bool  # whether a null is good

    @property
    def names_value(self) -> bool:
        """Whether the reason contains the checked value."""
        return VALUE in self.reason.encode()

    def failing(self, table: pa.Table) -> Bool:
        column: Any = table.column(self.column).combine_chunks()
        if pa.types.is_dictionary(column.type):
            verdicts = np.asarray(self.predicate(column.dictionary), np.bool_)
            row = np.asarray(_pc.fill_null(column.indices, len(verdicts)))
            good: Bool = np.append(verdicts, self.nulls_pass)[row]
        else:
            verdicts = self.predicate(column)
            good = np.asarray(_pc.if_else(column.is_valid(), verdicts, self.nulls_pass))
        return ~good


@dataclass(frozen=True, slots=True)
class Rules:
    """A compiled suite."""

    rules: tuple[Rule, ...]  # in the suite's order
    parameters: Mapping[str, Any]  # the values of the suite's parameters
    suite: Suite  # their source, as plain JSON: they can be compiled from it again
    digest: str  # a short hash of the suite's decisions, parameters apart

    def first_failure(self, columns: pa.Table) -> Int32:
        """For each row the index of the first rule that it fails, or ACCEPTED. Columns:
        RULE_COLUMNS.
        """
        failure = np.full(columns.num_rows, ACCEPTED, np.int32)
        for i, rule in enumerate(self.rules):
            if rule.nulls_pass and columns.column(rule.column).null_count == len(failure):
                continue  # most rules check headers that most batches lack
            failing = rule.failing(columns)
            if failing.any():
                failure[failing & (failure == ACCEPTED)] = i
        return failure


def compile_suite(suite: Suite, parameters: Mapping[str, Any]) -> Rules:
    """Compiles a suite; `parameters` has the value for each {"$PARAMETER": name}.

    Raises:
        ConfigError: a rule cannot be compiled with the same meaning; names the rule.
    """
    rules = []
    for i, expectation in enumerate(suite["expectations"]):
        try:
            rules.append(_compile(expectation, parameters))
        except (ConfigError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
            name = f"rule {i + 1} ({expectation.get('type')}) of suite {suite.get('name')!r}"
            what = f"lacks {error}" if isinstance(error, KeyError) else error
            raise ConfigError(f"{name}: {what}") from error
    # Only the decisions: a reworded refusal must not start a new settings epoch.
    decisive = [{k: e[k] for k in ("type", "kwargs")} for e in suite["expectations"]]
    canonical = json.dumps(decisive, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:16]
    return Rules(tuple(rules), dict(parameters), _essence(suite), digest)


def _essence(suite: Suite) -> dict[str, Any]:
    """The suite without entries that neither decide nor word a refusal."""
    kept = ("type", "kwargs", "meta")
    return {"expectations": [{k: e[k] for k in kept} for e in suite["expectations"]]}


_EXPECTATION_KEYS = {"type", "kwargs", "meta", "severity", "id", "description", "notes"}


def _compile(expectation: Mapping[str, Any], parameters: Mapping[str, Any]) -> Rule:
    unknown = set(expectation) - _EXPECTATION_KEYS
    if unknown:
        raise ConfigError(f"unknown entries: {', '.join(sorted(unknown))}")
    if expectation.get("severity", "critical") != "critical":
        raise ConfigError("a row that fails a rule is rejected: only severity critical is possible")
    make = _TYPES.get(expectation["type"])
    if make is None:
        raise ConfigError(f"not one of {', '.join(sorted(_TYPES))}")
    kwargs = {key: _resolve(value, parameters) for key, value in expectation["kwargs"].items()}
    if kwargs.pop("mostly", 1) != 1:
        raise ConfigError("mostly must be 1: each row is checked by itself")
    column = kwargs.pop("column")
    if column not in RULE_COLUMNS.names:
        raise ConfigError(f"there is no column {column!r}, only {', '.join(RULE_COLUMNS.names)}")
    predicate = make(_value_type(column), **kwargs)
    nulls_pass = expectation["type"] != "expect_column_values_to_not_be_null"
    meta = expectation["meta"]
    reason = _worded(str(meta["reason"]), parameters)
    if reason.encode().count(VALUE) > int(pa.types.is_integer(_value_type(column)) and nulls_pass):
        raise ConfigError("a reason can name the value once, of a column of numbers")
    return Rule(str(meta["code"]), reason, column, predicate, nulls_pass)


def _worded(reason: str, parameters: Mapping[str, Any]) -> str:
    """The reason with the values of parameters."""
    named = {**parameters, "value": VALUE.decode()}
    unknown = set(_PLACEHOLDER.findall(reason)) - named.keys()
    if unknown:
        raise ConfigError(f"no value for {', '.join(sorted(unknown))!r} in the reason")
    return _PLACEHOLDER.sub(lambda match: str(named[match[1]]), reason)


def _resolve(value: Any, parameters: Mapping[str, Any]) -> Any:
    """A suite parameter's value, or the value itself."""
    if not isinstance(value, Mapping):
        return value
    if set(value) != {"$PARAMETER"}:
        raise ConfigError(f"{dict(value)} is neither a value nor a parameter")
    name = value["$PARAMETER"]
    if name not in parameters:
        raise ConfigError(f"no value for the parameter {name!r}")
    return parameters[name]


def _value_type(column: str) -> pa.DataType:
    kind: Any = RULE_COLUMNS.field(column).type
    value_type: pa.DataType = kind.value_type if pa.types.is_dictionary(kind) else kind
    return value_type


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _need_text(kind: pa.DataType) -> None:
    if not _is_text(kind):
        raise ConfigError("the column is no text")


def _not_null(_kind: pa.DataType) -> Predicate:
    verdicts: Predicate = _pc.is_valid
    return verdicts


def _null(_kind: pa.DataType) -> Predicate:
    verdicts: Predicate = _pc.is_null
    return verdicts


def _in_set(kind: pa.DataType, value_set: object) -> Predicate:
    if not isinstance(value_set, list | tuple) or None in value_set:
        raise ConfigError("value_set must be a list without null")
    wanted = _pa.array(value_set, kind)
    return lambda values: _pc.is_in(values, value_set=wanted)


def _not_in_set(kind: pa.DataType, value_set: object) -> Predicate:
    contained = _in_set(kind, value_set)
    return lambda values: _pc.invert(contained(values))


def _between(
    kind: pa.DataType,
    min_value: int | None = None,
    max_value: int | None = None,
    strict_min: bool = False,
    strict_max: bool = False,
) -> Predicate:
    if not pa.types.is_integer(kind):
        raise ConfigError("the column is no number")
    return _range(min_value, max_value, strict_min, strict_max)


def _length_between(
    kind: pa.DataType,
    min_value: int | None = None,
    max_value: int | None = None,
    strict_min: bool = False,
    strict_max: bool = False,
) -> Predicate:
    _need_text(kind)
    in_range = _range(min_value, max_value, strict_min, strict_max)
    return lambda values: in_range(_pc.utf8_length(values))


def _range(
    min_value: int | None, max_value: int | None, strict_min: bool, strict_max: bool
) -> Predicate:
    """Inclusive at both ends unless strict; an end that is None is open."""
    given: tuple[object, object] = (min_value, max_value)
    for end in given:
        if end is not None and (not isinstance(end, int) or isinstance(end, bool)):
            raise ConfigError(f"{end!r} is no whole number")
    if min_value is None and max_value is None:
        raise ConfigError("neither min_value nor max_value is given")
    above = _pc.greater if strict_min else _pc.greater_equal
    below = _pc.less if strict_max else _pc.less_equal
    ends = [(above, min_value), (below, max_value)]
    tests = [(test, pa.scalar(end, pa.int64())) for test, end in ends if end is not None]

    def good(values: Any) -> Any:
        verdicts = [test(values, end) for test, end in tests]
        return verdicts[0] if len(verdicts) == 1 else _pc.and_(*verdicts)

    return good


def _matches(kind: pa.DataType, regex: str) -> Predicate:
    _need_text(kind)
    require_portable(regex)
    in_arrow = for_arrow(regex)
    _pc.match_substring_regex(_pa.array([""], pa.large_string()), in_arrow)
    return lambda values: _pc.match_substring_regex(values, in_arrow)


def _not_matches(kind: pa.DataType, regex: str) -> Predicate:
    matching = _matches(kind, regex)
    return lambda values: _pc.invert(matching(values))


_TYPES: dict[str, Callable[..., Predicate]] = {
    "expect_column_values_to_not_be_null": _not_null,
    "expect_column_values_to_be_null": _null,
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_not_be_in_set": _not_in_set,
    "expect_column_values_to_be_between": _between,
    "expect_column_value_lengths_to_be_between": _length_between,
    "expect_column_values_to_match_regex": _matches,
    "expect_column_values_to_not_match_regex": _not_matches,
}
