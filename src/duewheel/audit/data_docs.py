"""The results of the rules in a project of Great Expectations, and their Data Docs.

The project's validation results store has one result of the suite for each settings epoch, summed
over the chunks of an audit, and one for each timer topic with a suite of its own; the checkpoint
across rows (expectations.py) stores its own. A project may have other shards' results, and its
owner's: only those of this name are removed.
"""

from __future__ import annotations

import html
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from duewheel.audit.expectations import GreatExpectations, Tally


def run_of(audit: str, time_ms: int) -> Any:
    """Makes the key under which the library stores the results of one audit."""
    from great_expectations.core.run_identifier import RunIdentifier

    return RunIdentifier(audit, datetime.fromtimestamp(time_ms / 1000, UTC))


def keep(
    library: GreatExpectations, name: str, run: Any, results: Mapping[str, Sequence[Tally]]
) -> None:
    """Stores the totals of a suite under several names, and makes their pages."""
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    suite = ExpectationSuiteIdentifier(name)
    keys = []
    for which, totals in results.items():
        key = ValidationResultIdentifier(suite, run, which)
        library.context.validation_results_store.set(key, _validation(name, run, totals))
        keys.append(key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if keys:  # without any, the library would make the pages of all results again
            library.context.build_data_docs(resource_identifiers=keys)


def remove_old(library: GreatExpectations, names: Sequence[str], run: Any, keep: int) -> None:
    """Removes the results of all but the newest audits, of which `run` is one; their pages go when
    Data Docs are made next.
    """
    store: Any = library.context.validation_results_store
    ours = [key for key in store.list_keys() if key.expectation_suite_identifier.name in names]
    audits = sorted({run.run_time, *(key.run_id.run_time for key in ours)}, reverse=True)
    for key in ours:
        if key.run_id.run_time in audits[keep:]:
            store.remove_key(key)


def sites(library: GreatExpectations) -> list[str]:
    """Returns the addresses of Data Docs."""
    return [str(each["site_url"]) for each in library.context.get_docs_sites_urls()]


def _validation(suite: str, run: Any, tallies: Sequence[Tally]) -> Any:
    """Builds one of the library's result objects from the tallies of many chunks."""
    import great_expectations as gx
    from great_expectations.core import (
        ExpectationSuiteValidationResult,
        ExpectationValidationResult,
    )
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    results = [
        ExpectationValidationResult(
            success=tally.success,
            expectation_config=ExpectationConfiguration(
                **_shown(tally), notes=tally.expectation["meta"]["reason"]
            ),
            result=_result(tally),
        )
        for tally in tallies
    ]
    good = sum(tally.success for tally in tallies)
    return ExpectationSuiteValidationResult(
        success=good == len(tallies),
        results=results,
        suite_name=suite,
        statistics={
            "evaluated_expectations": len(tallies),
            "successful_expectations": good,
            "unsuccessful_expectations": len(tallies) - good,
            "success_percent": 100 * good / len(tallies),
        },
        meta={"great_expectations_version": gx.__version__, "run_id": run},
    )


def _shown(tally: Tally) -> dict[str, Any]:
    given = tally.expectation
    if tally.checked:
        return {"type": given["type"], "kwargs": given["kwargs"]}
    # The library makes no page of an expectation with wrong arguments: another has its text.
    of_table = {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 0}}
    return {**of_table, "description": given["meta"]["code"]}


def _result(tally: Tally) -> dict[str, Any]:
    validated = tally.rows - tally.nulls
    return {
        "element_count": tally.rows,
        "missing_count": tally.nulls,
        "missing_percent": _percent(tally.nulls, tally.rows),
        "unexpected_count": tally.failed,
        "unexpected_percent": _percent(tally.failed, validated),
        "unexpected_percent_total": _percent(tally.failed, tally.rows),
        "unexpected_percent_nonmissing": _percent(tally.failed, validated),
        # The library puts values into its tables unescaped: a producer could inject HTML.
        "observed_value": None if tally.observed is None else html.escape(str(tally.observed)),
        "partial_unexpected_list": [
            f"{html.escape(str(value))} of {source}" for source, value in tally.examples
        ],
    }


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
