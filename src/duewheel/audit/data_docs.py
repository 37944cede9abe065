"""Data Docs of an audit: pages with the output of Great Expectations' own renderers.

The library's page template loads styles, scripts and pictures from half a dozen servers. This
module's template loads nothing, so an audit can be read on a host without a network, and reading
it sends no request to anyone.
"""

from __future__ import annotations

import html
import importlib.resources
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from duewheel.audit.expectations import Tally


class DataDocs:
    """Renders the pages."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from great_expectations.render.renderer.page_renderer import (
                ValidationResultsPageRenderer,
            )
            from great_expectations.render.view.view import DefaultJinjaPageView
        self._renderer = ValidationResultsPageRenderer()
        self._env = DefaultJinjaPageView().env

    def page(
        self,
        suite: str,
        tallies: Sequence[Tally],
        title: str,
        summary: str,
        disagreements: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Renders the result of a suite as HTML.

        Args:
            suite: its name.
            tallies: of its expectations.
            title: of the page.
            summary: a sentence before the results.
            disagreements: listed before the results, too (validation.py).
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            document = self._renderer.render(_validation(suite, tallies)).to_json_dict()
        overview = document["sections"][0]["content_blocks"]
        # Links to pages of a documentation site, which an audit does not write.
        overview[:] = [each for each in overview if each["content_block_type"] == "table"]
        failed = [each.as_json() for each in tallies if not each.success]
        return self._render(
            "page",
            title,
            summary=summary,
            disagreements=disagreements,
            failed=failed,
            sections=document["sections"],
        )

    def index(self, title: str, audits: Sequence[Mapping[str, Any]]) -> str:
        """Renders a table of results (run.py) as HTML."""
        return self._render("index", title, audits=audits)

    def _render(self, name: str, title: str, **values: Any) -> str:
        base = self._env.from_string(_template("base"))
        page: str = self._env.from_string(_template(name)).render(base=base, title=title, **values)
        return page


def _template(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(f"{name}.html").read_text("utf-8")


def _validation(suite: str, tallies: Sequence[Tally]) -> Any:
    """Builds one of the library's result objects from the tallies of many chunks."""
    import great_expectations as gx
    from great_expectations.core import (
        ExpectationSuiteValidationResult,
        ExpectationValidationResult,
    )
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    results = []
    for tally in tallies:
        config = ExpectationConfiguration(
            type=tally.expectation["type"], kwargs=tally.expectation["kwargs"]
        )
        results.append(
            ExpectationValidationResult(
                success=tally.success, expectation_config=config, result=_result(tally)
            )
        )
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
        meta={"great_expectations_version": gx.__version__, "run_id": {}},
    )


def _result(tally: Tally) -> dict[str, Any]:
    if tally.observed is not None:
        return {"observed_value": tally.observed}
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
        "partial_unexpected_list": [_quoted(value) for _, value in tally.examples],
    }


def _quoted(value: Any) -> Any:
    return html.escape(value) if isinstance(value, str) else value


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
