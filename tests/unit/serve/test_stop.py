"""A stop of `duewheel serve`, as a process, while calls wait for a Kafka that does not answer."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
from tests.harness.launcher import events, launch, tail, wait_until
from tests.harness.served import TOKEN, bearer, fill, settings_of
from tests.harness.small_servers import is_silent, server

NEW = {"topic": "orders", "value": "v", "delay": "1m"}


def test_a_stop_does_not_wait_for_kafka(tmp_path: Path) -> None:
    fill(settings_of(tmp_path))
    token, config, log = (tmp_path / name for name in ("token", "duewheel.toml", "serve.log"))
    token.write_text(TOKEN)
    with server(is_silent) as kafka, ThreadPoolExecutor(12) as pool:
        config.write_text(
            f'[timer]\ntopics = "timers"\ntargets = "*"\nslots = 100_000\nroll_window = "1h"\n'
            f'margin = "5m"\n[storage]\ndata_dir = "{tmp_path}/data"\n'
            f'[kafka]\nbootstrap_servers = "{kafka}"\n'
            f'[serve]\nport = 0\ntoken_file = "{token}"\n[log]\nformat = "json"\n'
        )
        process = launch(config, "serve")
        wait_until(lambda: events(log, "serving"), lambda: tail(log), seconds=60)
        url = events(log, "serving")[0]["url"]
        with httpx.Client(base_url=url, headers=bearer(TOKEN), timeout=60) as client:
            safe = [
                pool.submit(client.get, "/v1/dead-letters"),
                pool.submit(client.post, "/v1/dead-letters/replay", json={"dry_run": False}),
            ]
            changes = [pool.submit(client.post, "/v1/timers", json=NEW) for _ in range(10)]
            time.sleep(1)  # until all have been read, which this one shows
            assert client.get("/livez").text == "ok"
            begin_s = time.monotonic()
            assert process.end(signal.SIGTERM, 30), tail(log)
            took_s = time.monotonic() - begin_s
            answers = [change.result().json()["code"] for change in changes]
            for each in safe:
                answer = each.result()
                assert (answer.status_code, answer.json()["code"]) == (503, "stopping")
    assert process.exit_code == 0, tail(log)
    assert took_s < 6, tail(log)
    # One token never has all eight threads. Nothing invites to write those that were begun again.
    assert sorted(answers) == ["stopping"] * 3 + ["unacknowledged"] * 7
