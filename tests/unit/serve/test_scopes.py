"""What a token for some timer topics sees and changes: `others`, beside the `timers` of a team."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partialmethod
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from httpx2 import Response
from tests.harness.served import LOCAL, READ_TOKEN, TOKEN, KitWriter, bearer

from duewheel.api.dead_letters import DeadLetterList
from duewheel.api.receipts import ReceiptList
from duewheel.client.handle import RecallHandle
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.dead_letters import listing
from duewheel.schemas.topic_scope import TopicScope
from duewheel.serve import receipts
from duewheel.serve.access import Access, Caller
from duewheel.serve.app import make_app
from duewheel.serve.scopes import DECISIONS
from duewheel.serve.service import Service
from duewheel.testing.service import LocalService

SCOPE = TopicScope(("oth*",))
TEAM = Caller("team", SCOPE)
NEW: dict[str, Any] = {"topic": "orders", "value": "v", "delay": "1h", "tag": "t"}
DAILY: dict[str, Any] = {"cron": "0 8 * * *", "target": "reports", "value": "v"}
OF_ALL = {"histogram", "stats", "replay_dead_letters", "pause", "resume"}
OF_NONE = {"status", "lateness", "fleet"}
SEARCHES = {"list_timers", "list_fleet_timers", "list_schedules", "list_receipts"}
SEARCHES |= {"list_dead_letters", "cancel_timers"}
OPEN = {"livez", "readyz", "metrics", "page", "page_file"}
ELSEWHERE = {"shard_readyz", "read_shard", "change_shard"}  # decided and recorded by another server
FILES = {"/openapi.json"}


@pytest.fixture
def app(service: LocalService, settings: Settings) -> FastAPI:
    tokens = {TOKEN.encode(): TEAM, READ_TOKEN.encode(): Caller("all")}
    app = make_app(settings, service.clock, Access(tokens, tokens))
    own: Service = app.state.service
    writer = KitWriter(settings, service)
    app.state.service = Service(settings, own.clock, own.view, writer, own.recorder, own.metrics)
    return app


class Holder:
    """Sends requests with a token."""

    def __init__(self, client: TestClient, token: str) -> None:
        self._client, self._headers = client, bearer(token)

    def request(self, method: str, path: str, **named: Any) -> Response:
        answer: Response = self._client.request(method, path, headers=self._headers, **named)
        return answer

    get, put = partialmethod(request, "GET"), partialmethod(request, "PUT")
    post, delete = partialmethod(request, "POST"), partialmethod(request, "DELETE")


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=LOCAL) as client:
        yield client


@pytest.fixture
def team(client: TestClient) -> Holder:
    return Holder(client, TOKEN)


@pytest.fixture
def whole(client: TestClient) -> Holder:
    return Holder(client, READ_TOKEN)


def routes_of(app: FastAPI) -> dict[str, APIRoute]:
    """All routes of operations, by their id; FastAPI keeps those of a router together."""
    parts = [getattr(each, "original_router", each) for each in app.routes]
    routes = [route for part in parts for route in getattr(part, "routes", [part])]
    found = {each.operation_id: each for each in routes if isinstance(each, APIRoute)}
    described = [each for path in app.openapi()["paths"].values() for each in path.values()]
    assert {each["operationId"] for each in described} <= found.keys()
    others = {each.path for each in routes if getattr(each, "operation_id", None) is None}
    assert others == FILES
    return {name: each for name, each in found.items() if name is not None}


def calls_of(dependant: Dependant) -> list[Callable[..., Any]]:
    own = [] if dependant.call is None else [dependant.call]
    return [*own, *(call for each in dependant.dependencies for call in calls_of(each))]


def schedule(client: Holder, topic: str, count: int = 1) -> list[str]:
    """Schedules timers, and returns their handles."""
    new = NEW | {"timer_topic": topic}
    answers = [client.post("/v1/timers", json=new).json() for _ in range(count)]
    return [each["handle"] for each in answers]


def test_each_operation_has_one_decision(app: FastAPI) -> None:
    routes = routes_of(app)
    assert len(routes) > 25
    for name, route in routes.items():
        made = set(calls_of(route.dependant)) & DECISIONS
        assert len(made) == (0 if name in OPEN else 1), name


def test_each_change_is_recorded(app: FastAPI) -> None:
    routes = routes_of(app)
    recorded = {name for name, each in routes.items() if hasattr(each.endpoint, "__wrapped__")}
    changes = {name for name, each in routes.items() if each.methods != {"GET"}}
    assert recorded == changes - ELSEWHERE
    assert len(recorded) > 10


def requests_of(handle: str) -> dict[str, tuple[str, str, Any]]:
    """A request of each operation that names the timer topic `timers`, or all."""
    daily = "/v1/schedules/daily"
    search = {"filter": {"topic": "orders"}, "dry_run": False}
    return {
        "list_timers": ("GET", "/v1/timers", None),
        "list_fleet_timers": ("GET", "/v1/fleet/timers", None),
        "show_timer": ("GET", f"/v1/timers/{handle}", None),
        "histogram": ("GET", "/v1/histogram", None),
        "stats": ("GET", "/v1/stats", None),
        "status": ("GET", "/v1/status", None),
        "lateness": ("GET", "/v1/lateness", None),
        "fleet": ("GET", "/v1/fleet", None),
        "list_receipts": ("GET", "/v1/receipts", None),
        "list_dead_letters": ("GET", "/v1/dead-letters", None),
        "show_dead_letter": ("GET", "/v1/dead-letters/0/0", None),
        "list_schedules": ("GET", "/v1/schedules?timer_topic=timers", None),
        "show_schedule": ("GET", f"{daily}?timer_topic=timers", None),
        "next_instants": ("GET", f"{daily}/next", None),
        "schedule": ("POST", "/v1/timers", NEW),
        "cancel_timer": ("DELETE", f"/v1/timers/{handle}", None),
        "reschedule_timer": ("POST", f"/v1/timers/{handle}/reschedule", {"delay": "2h"}),
        "fire_timer": ("POST", f"/v1/timers/{handle}/fire", None),
        "cancel_timers": ("POST", "/v1/cancel", search),
        "replay_dead_letters": ("POST", "/v1/dead-letters/replay", {"dry_run": True}),
        "set_schedule": ("PUT", daily, DAILY),
        "pause_schedule": ("POST", f"{daily}/pause?timer_topic=timers", None),
        "resume_schedule": ("POST", f"{daily}/resume", None),
        "trigger_schedule": ("POST", f"{daily}/trigger?timer_topic=timers", None),
        "stop_schedule": ("DELETE", f"{daily}?timer_topic=", None),
        "pause_selection": ("POST", "/v1/pause/timer-topic/timers", {}),
        "resume_selection": ("POST", "/v1/resume/timer-topic/timers", None),
        "pause": ("POST", "/v1/pause/dequeue", None),
        "resume": ("POST", "/v1/resume/dequeue", None),
    }


def test_no_operation_shows_or_changes_what_is_out_of_scope(
    app: FastAPI, team: Holder, whole: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes: list[object] = []

    def letters(*args: Any) -> DeadLetterList:
        scopes.append(args[-1])
        return DeadLetterList(letters=[], next=None)

    def letter(*_: Any, scope: object, **__: Any) -> None:
        scopes.append(scope)

    def found(*args: Any) -> ReceiptList:
        scopes.append(args[-1])
        return ReceiptList(receipts=[], next=None)

    monkeypatch.setattr(listing, "page_of_letters", letters)
    monkeypatch.setattr(listing, "one_letter", letter)
    monkeypatch.setattr(receipts, "page_of_receipts", found)
    (handle,) = schedule(whole, "timers")
    assert whole.put("/v1/schedules/daily", json=DAILY).status_code == 200
    requests = requests_of(handle)
    assert requests.keys() == routes_of(app).keys() - OPEN - ELSEWHERE
    for name, (method, path, body) in requests.items():
        answer = team.request(method, path, json=body)
        if name in SEARCHES:
            assert answer.status_code == 200 and "timers-" not in answer.text, (name, answer.text)
        elif name in OF_NONE:
            assert answer.status_code == 200, name
        elif name == "show_dead_letter":
            assert answer.json()["code"] == "no_such_letter"
        else:
            assert (answer.status_code, answer.json()["code"]) == (403, "out_of_scope"), name
            touched = "all timer topics" if name in OF_ALL else ("timers", "all timer topics", "")
            ends = (touched,) if isinstance(touched, str) else touched
            begin = "the token team is for oth*, and this is of "
            assert answer.json()["detail"] in {begin + end for end in ends}, name
    assert scopes == [SCOPE] * 3
    assert whole.get(f"/v1/timers/{handle}").json()["cancelled"] is False
    assert whole.get("/v1/schedules/daily").json()["state"] == "active"


def test_a_team_does_what_it_wants_in_its_own_topics(team: Holder, whole: Holder) -> None:
    (theirs,) = schedule(whole, "timers")
    first, second, third = schedule(team, "others", 3)
    assert [each["handle"] for each in team.get("/v1/timers").json()["timers"]] == [
        first,
        second,
        third,
    ]
    assert team.get(f"/v1/timers/{first}").json()["source"].startswith("others-")
    assert team.delete(f"/v1/timers/{first}?wait=0").status_code == 202
    moved = team.post(f"/v1/timers/{second}/reschedule?wait=0", json={"delay": "3h"}).json()
    assert moved["former_due_ms"] == RecallHandle.decode(second).due_ms < moved["due_ms"]
    search = {"filter": {"topic": "orders"}, "dry_run": True, "at_most": 2}
    assert team.post("/v1/cancel", json=search).json()["matched"] == 2
    assert whole.post("/v1/cancel", json=search).json()["code"] == "conflict"
    beyond = search | {"filter": {"topic": "orders", "timer_topic": "timers"}}
    assert team.post("/v1/cancel", json=beyond).json()["matched"] == 0
    assert whole.post("/v1/cancel", json=beyond).json()["matched"] == 1
    assert team.get("/v1/timers?timer_topic=timers").json()["timers"] == []
    done = team.post("/v1/cancel?wait=0", json=search | {"dry_run": False}).json()
    assert (done["matched"], done["written"]) == (2, 2)
    assert whole.get(f"/v1/timers/{theirs}").json()["cancelled"] is False
    paused = team.post("/v1/pause/tag/t", json={})
    assert paused.json()["code"] == "out_of_scope"


def test_a_page_of_a_team_is_full_while_there_are_more(team: Holder, whole: Holder) -> None:
    for _ in range(4):
        schedule(whole, "timers", 3)
        schedule(team, "others")
    pages: list[list[dict[str, Any]]] = []
    page = None
    while page is not None or not pages:
        parameters = {"limit": 3} | ({"page": page} if page else {})
        found = team.get("/v1/timers", params=parameters).json()
        pages.append(found["timers"])
        page = found["next"]
    assert [len(each) for each in pages] == [3, 1]
    assert {each["source"].partition("-")[0] for rows in pages for each in rows} == {"others"}


def test_schedules_of_others_are_neither_listed_nor_hinted_at(team: Holder, whole: Holder) -> None:
    whole.put("/v1/schedules/daily", json=DAILY)
    team.put("/v1/schedules/weekly?timer_topic=others", json=DAILY)
    (own,) = team.get("/v1/schedules").json()["schedules"]
    assert own["name"] == "weekly"
    assert len(whole.get("/v1/schedules").json()["schedules"]) == 2
    named = "/v1/schedules/daily?timer_topic=others"
    assert "timers" in whole.get(named).json()["detail"]
    for missing in (team.get(named), team.delete(named)):
        assert missing.json()["code"] == "no_such_schedule"
        assert "there is one in" not in missing.json()["detail"]
    differing = team.put(
        "/v1/schedules/x?timer_topic=others", json=DAILY | {"timer_topic": "timers"}
    )
    assert differing.status_code == 422


def test_reads_that_need_no_token_are_bounded_by_one_that_is_given(
    service: LocalService, settings: Settings
) -> None:
    app = make_app(settings, service.clock, Access({TOKEN.encode(): TEAM}))
    with TestClient(app, base_url=LOCAL) as client:
        assert client.get("/v1/stats").status_code == 200
        assert client.get("/v1/stats", headers=bearer("x" * 20)).status_code == 200
        assert client.get("/v1/stats", headers=bearer(TOKEN)).status_code == 403


@pytest.mark.parametrize(
    ("patterns", "inside", "outside"),
    [
        ((), ["a", ""], []),
        (("a.*", "b"), ["a.x", "b", "a.", "a.b.c"], ["ab", "a", "b.x", "xa.b", "a.x\n", "b\n", ""]),
        (("a?",), ["ab"], ["a", "abc", "a\n"]),
        (("[!a]",), ["b"], ["a"]),
    ],
)
def test_a_scope_has_whole_names(
    patterns: tuple[str, ...], inside: list[str], outside: list[str]
) -> None:
    scope = TopicScope(patterns)
    assert [name in scope for name in inside] == [True] * len(inside)
    assert [name in scope for name in outside] == [False] * len(outside)


@pytest.mark.parametrize("pattern", ["", "a b", "orders,bills", "[a"])
def test_a_scope_has_only_patterns_of_names(pattern: str) -> None:
    with pytest.raises(ConfigError):
        TopicScope(("orders", pattern))


def test_a_record_belongs_to_its_topic_alone() -> None:
    scope = TopicScope(("a",))
    assert scope.has_record("a-0@7")
    for name in ("a-b-0@7", "b-0@7", "a", "a-0", "", "a-0@7 b", "a\n-0@7"):
        assert not scope.has_record(name), name
    assert TopicScope().has_record("")
