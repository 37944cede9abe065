"""`duewheel serve`, as a process, while a file of its shard can be neither opened nor read."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx2 as httpx
import pytest
from tests.harness.launcher import events, launch, tail, wait_until
from tests.harness.served import fill, settings_of

from duewheel.checkpoints.process_role import Role
from duewheel.serve.file_probe import ANSWER_S

PROBES = 9  # of each kind


@pytest.mark.slow
def test_a_disk_that_hangs_leaves_the_probes_answers(tmp_path: Path) -> None:
    fill(settings_of(tmp_path))
    config, log = tmp_path / "duewheel.toml", tmp_path / "serve.log"
    config.write_text(
        f'[timer]\ntopics = "timers"\nslots = 100_000\nroll_window = "1h"\nmargin = "5m"\n'
        f'[storage]\ndata_dir = "{tmp_path}/data"\n[serve]\nport = 0\n[log]\nformat = "json"\n'
    )
    lock = tmp_path / "data" / Role.DEQUEUE.lock_name
    lock.unlink(missing_ok=True)
    os.mkfifo(lock)  # to open it waits for a writer
    process = launch(config, "serve")
    wait_until(lambda: events(log, "serving"), lambda: tail(log), seconds=60)
    threads = Path(f"/proc/{process.pid}/task")
    with httpx.Client(base_url=events(log, "serving")[0]["url"], timeout=60) as client:
        before = len(list(threads.iterdir()))
        for _ in range(PROBES):
            answer = client.get("/readyz")
            assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
            assert answer.json()["reasons"].keys() == {"unreadable"}
            metrics = client.get("/metrics")
            assert (metrics.status_code, "duewheel_ready" in metrics.text) == (200, False)
            assert 'operation="readyz",status="503"}' in metrics.text
            assert client.get("/livez").text == "ok"
        # The thread that watches the assignment, and its client's, may begin meanwhile.
        assert len(list(threads.iterdir())) < before + PROBES, "each kind of probe has one thread"
        opened = os.open(lock, os.O_RDWR)
        reasons = client.get("/readyz").json()["reasons"]
        assert "dequeue_not_running" in reasons
        assert "duewheel_ready 0.0" in client.get("/metrics").text
        os.close(opened)
    assert process.end(signal.SIGTERM, 30), tail(log)


def test_the_answer_comes_before_a_kubelet_has_given_up() -> None:
    assert ANSWER_S < 1, "the timeout of a probe unless its pod sets another"
