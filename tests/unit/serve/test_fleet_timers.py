"""One search of the pending timers of all shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.harness.browser import listening
from tests.harness.local_world import NOW_MS
from tests.harness.served import (
    CHANGING,
    COUNT,
    READ_TOKEN,
    READING,
    TOKEN,
    bearer,
    fill,
    served,
    shard_of,
)

from duewheel.serve.access import Access, Caller
from duewheel.serve.app import make_app
from duewheel.testing import ManualClock

ACCESS = Access(change=CHANGING, read=READING)
SHARDS = 3


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """Of a server that knows those of shards 0 and 1, the second with other tokens, too; shard 2
    has none.
    """
    known = {**READING, b"o" * 32: Caller("other")}
    with ExitStack() as stack:
        urls = []
        for index, access in ((0, ACCESS), (1, Access(change={}, read=READING))):
            shard = shard_of(tmp_path / f"{index}", index=index, count=SHARDS)
            fill(shard)
            app = make_app(shard, ManualClock(NOW_MS), access)
            urls.append(stack.enter_context(listening(app)).rstrip("/"))
        asking = shard_of(tmp_path / "asking", tuple(urls), count=SHARDS)
        client = stack.enter_context(served(asking, Access(change=CHANGING, read=known)))
        client.headers |= bearer(READ_TOKEN)
        yield client


def test_timers_of_all_shards_in_the_order_in_which_they_leave(client: TestClient) -> None:
    found = client.get("/v1/fleet/timers", params={"limit": 1000}).json()
    timers = found["timers"]
    assert (len(timers), found["more"], found["shards"]) == (4 * COUNT, False, SHARDS)
    assert [each["shard"] for each in timers[:4]] == [0, 0, 1, 1]
    leaves = [each["leaves_ms"] for each in timers]
    assert leaves == sorted(leaves)
    first = client.get("/v1/fleet/timers", params={"limit": 3}).json()
    assert (first["timers"], first["more"]) == (timers[:3], True)
    nothing = client.get("/v1/fleet/timers", params={"id": "a/b?c&d é"}).json()
    assert (nothing["timers"], nothing["more"]) == ([], False)


def test_a_shard_that_is_not_searched_is_named(client: TestClient) -> None:
    (absent,) = client.get("/v1/fleet/timers").json()["absent"]
    assert absent == {
        "shard": 2,
        "reason": "no server of serve.shards has answered for the owner of shard 2",
    }


def test_each_server_judges_the_token(client: TestClient) -> None:
    assert client.get("/v1/fleet/timers", headers=bearer("x" * 32)).status_code == 401
    found = client.get("/v1/fleet/timers", headers=bearer(TOKEN)).json()
    assert {each["shard"] for each in found["timers"]} == {0}
    assert [each["shard"] for each in found["absent"]] == [1, 2]
    for each in found["absent"]:
        assert "401: give a valid token" in each["reason"]
    found = client.get("/v1/fleet/timers", headers=bearer("o" * 32)).json()
    assert (found["timers"], len(found["absent"])) == ([], SHARDS)


def test_a_wrong_search_is_no_absence(client: TestClient) -> None:
    for wrong in ({"key": "a", "key_base64": "YQ=="}, {"limit": 0}, {"from": "soon"}):
        answer = client.get("/v1/fleet/timers", params=wrong)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def test_a_server_that_names_no_others_searches_its_own_shard(tmp_path: Path) -> None:
    settings = shard_of(tmp_path, index=1, count=2)
    fill(settings)
    with served(settings) as client:
        found = client.get("/v1/fleet/timers", params={"limit": 1, "from": str(NOW_MS)}).json()
    assert [each["shard"] for each in found["timers"]] == [1]
    assert (found["more"], [each["shard"] for each in found["absent"]]) == (True, [0])


def test_without_files_there_is_no_list(tmp_path: Path) -> None:
    with served(shard_of(tmp_path)) as client:
        answer = client.get("/v1/fleet/timers")
    assert (answer.status_code, answer.json()["code"]) == (503, "no_data_directory")
