"""The API does what its description (OpenAPI) says, for requests that Schemathesis makes of it:
those that fit the description, and those that do not.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.harness.served import TOKEN, RecordingProducer, bearer, fill, served, settings_of

from duewheel.serve.access import Access

# Rules between fields, and states of timers, refuse requests that fit the description.
EXCLUDED: list[Any] = [positive_data_acceptance]
# The first is in Kafka; the processes of the second do not run.
NOT_HERE = "/v1/dead-letters|/readyz"


@pytest.mark.parametrize("mode", GenerationMode)
def test_requests_are_answered_as_described(tmp_path: Path, mode: GenerationMode) -> None:
    settings = settings_of(tmp_path, hosts="testserver")
    fill(settings)
    tried = set()
    with served(settings, Access(TOKEN.encode()), RecordingProducer()) as client:
        api = schemathesis.openapi.from_asgi("/openapi.json", client.app)
        # The API ignores unknown parameters of a URL.
        api.config.generation.allow_extra_parameters = False
        for each in api.exclude(path_regex=NOT_HERE).get_all_operations():
            assert isinstance(each, Ok)
            operation = each.ok()

            @given(case=operation.as_strategy(generation_mode=mode))
            @examples(
                max_examples=15,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            def answered(case: Case[Any]) -> None:
                tried.add(case.operation.label)
                case.call_and_validate(headers=bearer(TOKEN), excluded_checks=EXCLUDED)

            with suppress(Unsatisfiable):  # an operation without parameters has no wrong ones
                answered()
    assert len(tried) >= 10, tried
