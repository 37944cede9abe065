"""`duewheel prove` on a real broker: a verdict, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaAdminClient
from tests.harness.config_file import write_config
from tests.harness.launcher import wait_until
from tests.harness.shared_broker import SharedBroker

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

DEADLINE_S = 480.0
GONE_S = 40.0
RARE = pytest.mark.crash_matrix


class ProveRun:
    """A `duewheel prove` with a prefix of its own, in a folder of its own."""

    def __init__(
        self, folder: Path, broker: SharedBroker, prefix: str, **sections: dict[str, Any]
    ) -> None:
        self.out, self.temporary = folder / "prove.html", folder / "tmp"
        self.temporary.mkdir()
        self._prefix, self._broker, self._mark = prefix, broker, str(folder)
        self._config = write_config(folder, broker.bootstrap_servers, prefix, **sections)

    def start(self, *words: str) -> subprocess.Popen[str]:
        fixed = ["--config", str(self._config), "--prefix", self._prefix, "--out", str(self.out)]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "duewheel", "prove", *fixed, "--output", "json", *words],
            env={**os.environ, "PROVE_TEST": self._mark, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> list[psutil.Process]:
        """All that were started by it and run."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("PROVE_TEST") == self._mark:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def topics(self) -> list[str]:
        admin = KafkaAdminClient(bootstrap_servers=self._broker.bootstrap_servers)
        try:
            return [name for name in admin.list_topics() if name.startswith(self._prefix)]
        finally:
            admin.close()

    def require_nothing_left(self) -> None:
        assert self.topics() == []
        assert list(self.temporary.iterdir()) == []
        wait_until(lambda: not self.processes(), lambda: str(self.processes()), GONE_S, 0.2)


@pytest.fixture
def sections() -> dict[str, dict[str, Any]]:
    """Of the settings, besides those of a small shard."""
    return {}


@pytest.fixture
def prove(
    tmp_path: Path,
    broker: SharedBroker,
    unique_name: Callable[[str], str],
    sections: dict[str, dict[str, Any]],
) -> Iterator[ProveRun]:
    run = ProveRun(tmp_path, broker, unique_name("prove")[-40:].lstrip("-"), **sections)
    yield run
    for process in run.processes():
        process.kill()


def ended(run: subprocess.Popen[str]) -> dict[str, Any]:
    """The result of a proof that holds."""
    out, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 0, (out, err)
    result: dict[str, Any] = json.loads(out)
    return result


def require_good(result: dict[str, Any], kills: int) -> None:
    assert result["ok"] and set(result["faults"].values()) == {0}
    assert [each["kind"] for each in result["interruptions"]][:1] == ["start"]
    assert len(result["interruptions"]) == kills + 1
    assert all(each["took_s"] > 0 for each in result["interruptions"])
    assert result["delivered"] > 0 < result["rolled"]
    assert result["rejected"] > 0 < result["cancelled"]
    assert result["expired"] > 0
    assert {"cancelled", "already_delivered"} <= result["replies"].keys()
    assert result["findings"] == result["own_ends"] == result["left"] == [] == [*result["stuck"]]
    assert {"pyspark", "java", "duewheel"} <= result["versions"].keys()


@pytest.mark.timeout(300)
def test_a_proof_with_a_kill_holds_and_leaves_nothing(prove: ProveRun) -> None:
    words = ("--minutes", "0.1", "--timers", "900", "--kills", "1", "--seed", "3")
    result = ended(prove.start(*words))
    require_good(result, kills=1)
    assert result["interruptions"][1]["kind"] == "dequeue"
    assert result["lateness_ms"]["undisturbed"]["count"] > 0
    assert result["lateness_ms"]["disturbed"]["count"] > 0
    assert sum(row["count"] for row in result["lateness_ms"].values()) == result["delivered"]
    page = prove.out.read_text("utf-8")
    assert "The guarantees held" in page and result["name"] in page
    prove.require_nothing_left()


@pytest.mark.timeout(300)
def test_a_proof_that_is_interrupted_leaves_nothing(prove: ProveRun) -> None:
    run = prove.start("--minutes", "5")
    # The proof, the folder's remover, `run`, dequeue and ingest.
    wait_until(lambda: len(prove.processes()) >= 5, "it does not start", DEADLINE_S, 0.2)
    run.send_signal(signal.SIGINT)
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)  # of one who has no patience
    out, err = run.communicate(timeout=DEADLINE_S)
    assert (run.returncode, out, prove.out.exists()) == (130, "", False), err
    prove.require_nothing_left()


def require_failed(prove: ProveRun, run: subprocess.Popen[str], reason: str) -> None:
    """It ends with a verdict and a page, and leaves nothing."""
    out, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 1, (out, err)
    result = json.loads(out)
    assert not result["ok"] and reason in result["stuck"], result["stuck"]
    assert result["scheduled"] > 0
    assert "Nothing was proved" in prove.out.read_text("utf-8")
    prove.require_nothing_left()


@RARE
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "sections", [{"spark": {"spark.driver.extraJavaOptions": "-Xss1k"}}], ids=["no JVM"]
)
def test_a_start_that_fails_again_and_again_ends_the_proof(prove: ProveRun) -> None:
    """By this reason, which it gives before the five minutes without a delivery are over."""
    require_failed(prove, prove.start("--minutes", "1"), "ingest does not come back")


@RARE
@pytest.mark.timeout(600)
def test_a_process_that_hangs_after_its_kill_ends_the_proof(prove: ProveRun) -> None:
    def dequeues() -> set[psutil.Process]:
        found = set()
        for process in prove.processes():
            with suppress(psutil.NoSuchProcess):
                found |= {process} if "dequeue" in process.cmdline() else set()
        return found

    run = prove.start("--minutes", "0.5", "--kills", "1")  # of dequeue
    wait_until(dequeues, "it does not start", DEADLINE_S, 0.05)
    first = dequeues()
    stopped: list[psutil.Process] = []

    def suspend() -> bool:
        # In the look that has found it: another one may miss it while it begins.
        for process in dequeues() - first:
            process.suspend()
            stopped.append(process)
        return bool(stopped)

    wait_until(suspend, "it is not killed", DEADLINE_S, 0.01)
    require_failed(prove, run, "the processes are not back from the kill of dequeue")


@RARE
@pytest.mark.timeout(600)
def test_a_proof_with_every_kind_of_kill(prove: ProveRun) -> None:
    result = ended(prove.start("--minutes", "1", "--timers", "6000", "--kills", "5"))
    require_good(result, kills=5)
    kinds = {each["kind"] for each in result["interruptions"]}
    assert kinds == {"start", "dequeue", "ingest", "both", "all", "data"}
    prove.require_nothing_left()


@RARE
@pytest.mark.timeout(300)
def test_a_killed_proof_leaves_topics_alone(prove: ProveRun) -> None:
    run = prove.start("--minutes", "5")
    wait_until(lambda: len(prove.processes()) >= 5, "it does not start", DEADLINE_S, 0.2)
    run.kill()
    run.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not prove.processes(), lambda: str(prove.processes()), GONE_S, 0.2)
    assert list(prove.temporary.iterdir()) == []
    assert all(name.startswith(prove.topics()[0].partition(".")[0]) for name in prove.topics())
