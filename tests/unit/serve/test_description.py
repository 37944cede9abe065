"""The API does what its description (OpenAPI) says, for requests that Schemathesis makes of it:
those that fit the description, and those that do not.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.harness.served import (
    CHANGING,
    TOKEN,
    RecordingProducer,
    bearer,
    fill,
    served,
    settings_of,
    without_log_ends,
)

from duewheel.api.requests import MessageHeader
from duewheel.client.request_headers import users
from duewheel.clock import SystemClock
from duewheel.errors import InvalidTimer
from duewheel.ops.schedules import listing
from duewheel.schemas.header_names import REQUEST, TIMER_ID
from duewheel.serve.access import Access
from duewheel.serve.app import make_app

# NOT_FORM and states of timers refuse requests that fit the description.
EXCLUDED: list[Any] = [positive_data_acceptance]
EXAMPLES = {GenerationMode.POSITIVE: 40, GenerationMode.NEGATIVE: 15}
# What no description can say: these settings, spans of time, bytes of UTF-8, the grammar of cron,
# and rules between parameters of a URL.
NOT_FORM = re.compile(
    r"is no timer topic|names no topic|is the timer topic itself|there is no level|not_allowed|"
    r"another timer_topic than the body|longest delay|maximum delay|"
    r"longer than any that can be kept|is below a second|is no interval|"
    r"expires at .* before it is due|bytes|milliseconds from 0 to a day|"
    r"no cron expression|TIMER_ZONE|no instant|UNIQ_KEY is reserved|"
    r"give `from` and `to`|an end after the begin|key: give text or base64"
)
# The first two are in Kafka; the processes of the third do not run.
OPTION = re.compile(r"(?:^|[\s`(])--[a-z]")
NOT_HERE = r"/v1/dead-letters|/v1/\w+/\{kind\}|/readyz"


@pytest.mark.slow
@pytest.mark.parametrize("mode", GenerationMode)
def test_requests_are_answered_as_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: GenerationMode
) -> None:
    for pauses in ("READ_PAUSES_S", "CHANGE_PAUSES_S"):
        monkeypatch.setattr(listing, pauses, ())
    without_log_ends(monkeypatch)
    settings = settings_of(tmp_path, hosts="testserver")
    fill(settings)
    with served(settings, Access()) as client:
        listed = client.get("/v1/timers", headers={"Host": "testserver"}).json()["timers"]
    tried = set()
    with served(settings, Access(CHANGING), RecordingProducer()) as client:
        api = schemathesis.openapi.from_asgi("/openapi.json", client.app)
        # The API ignores unknown parameters of a URL.
        api.config.generation.allow_extra_parameters = False
        for each in api.exclude(path_regex=NOT_HERE).get_all_operations():
            assert isinstance(each, Ok)
            operation = each.ok()

            @given(case=operation.as_strategy(generation_mode=mode))
            @examples(
                max_examples=EXAMPLES[mode],
                deadline=None,
                phases=[Phase.generate],  # a shrunk request says no more, after minutes
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            def answered(case: Case[Any]) -> None:
                tried.add(case.operation.label)
                if mode is GenerationMode.POSITIVE:
                    fit(case, listed[-1]["handle"])
                response = case.call_and_validate(headers=bearer(TOKEN), excluded_checks=EXCLUDED)
                if mode is GenerationMode.POSITIVE and response.status_code == 422:
                    problem = response.json()
                    for each in problem.get("errors", [problem]):
                        assert NOT_FORM.search(each["detail"]), each

            with suppress(Unsatisfiable):  # an operation without parameters has no wrong ones
                answered()
    assert len(tried) >= 10, tried


def fit(case: Case[Any], handle: str) -> None:
    """With a handle that a response had, as its description says; and without a wait for ingest."""
    if "handle" in case.path_parameters:
        case.path_parameters["handle"] = handle
    if "/schedules" in case.path and case.method in {"PUT", "POST", "DELETE"}:
        case.query = {**(case.query or {}), "wait": 0}


def test_the_described_names_of_headers_are_those_that_are_taken() -> None:
    described = MessageHeader.model_json_schema()["properties"]["name"]["not"]["enum"]

    def is_refused(name: str) -> bool:
        try:
            users([(name, b"1")])
        except InvalidTimer:
            return True
        return False

    assert sorted(filter(is_refused, REQUEST)) == sorted([*described, TIMER_ID])


def test_no_text_of_the_api_names_an_option_of_a_command() -> None:
    """An error of a shared operation reaches HTTP clients, who have no command line."""
    program = "import sys, duewheel.serve.app; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", program]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    modules = [name for name in loaded if name.startswith(("duewheel.serve", "duewheel.ops"))]
    assert "duewheel.ops.dead_letters.replay" in modules
    named = [
        (module, part.value)
        for module in modules
        for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(module))))
        for part in ast.iter_child_nodes(node)
        if isinstance(part, ast.Constant) and not isinstance(node, ast.Expr)
        if OPTION.search(str(part.value))
    ]
    assert named == []
    app = make_app(settings_of(Path()), SystemClock(), Access(None))
    assert not OPTION.search(json.dumps(app.openapi()))
