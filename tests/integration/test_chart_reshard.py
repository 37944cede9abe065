"""`helm upgrade` with another number of shards: what the rendered manifests run, as processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.harness.chart import HELM, MISSING, Manifests, environment, rendered
from tests.harness.launcher import tail, wait_until
from tests.harness.shared_broker import SharedBroker
from tests.harness.whole_shard import WholeShard, judge, schedule

from duewheel.dev.listeners import free_ports
from duewheel.errors import Fenced, RecoveryRefused
from duewheel.kafka.progress.all_shards import all_shards
from duewheel.osutil.child_process import Child

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.crash_matrix,
    pytest.mark.usefixtures("java"),
    pytest.mark.timeout(600),
]

TIMERS = 600  # due within seconds, so before, while and after the shards change
END_S = 120.0
POD, HOOK = "StatefulSet/orders-duewheel", "Job/orders-duewheel-reshard"


class Pods:
    """Runs containers as the kubelet does: their variables, arguments and mounted files."""

    def __init__(self, folder: Path, config: Path) -> None:
        self._folder, self._config = folder, config
        self._ports = free_ports(2)
        self._children: list[Child] = []

    def release(self, shards: int) -> Manifests:
        """What `helm upgrade --set shards=…` applies."""
        ingest, dequeue = self._ports
        values = (f"metrics.ingestPort={ingest}", f"metrics.dequeuePort={dequeue}")
        rest = ("ingest.tasks=1", "init.enabled=true")
        return rendered(f"shards={shards}", *values, *rest, config=self._config)

    def start(
        self, manifests: Manifests, workload: str, name: str, index: int = 0
    ) -> tuple[Child, Path]:
        """A container, and its log."""
        spec = manifests[workload]["spec"]["template"]["spec"]
        every = [*spec.get("initContainers", []), *spec["containers"]]
        (container,) = [each for each in every if each["name"] == name]
        pod = self._folder / f"{workload.rpartition('/')[2]}-{index}"
        mounts = {each["mountPath"]: pod / each["name"] for each in container["volumeMounts"]}
        for path in mounts.values():
            path.mkdir(parents=True, exist_ok=True)
        (volume,) = [each for each in spec["volumes"] if each["name"] == "config"]
        data = manifests[f"ConfigMap/{volume['configMap']['name']}"]["data"]
        for file, text in data.items():
            (pod / "config" / file).write_text(text)
        variables = environment(manifests, container, index)
        for at, value in variables.items():
            for mount, path in mounts.items():
                if value.startswith(f"{mount}/"):
                    variables[at] = f"{path}{value.removeprefix(mount)}"
        # A pod has an address of its own.
        variables["DUEWHEEL_METRICS__HOST"] = f"127.0.0.{index + 2}"
        log = pod / f"{name}.log"
        with log.open("ab") as out:
            child = Child(
                [sys.executable, "-P", "-m", "duewheel", *container["args"]],
                stdout=out,
                stderr=out,
                env={**os.environ, **variables},
            )
        self._children.append(child)
        return child, log

    def end(
        self, manifests: Manifests, workload: str, name: str, index: int = 0
    ) -> tuple[Any, str]:
        """Exit code and log of a container that ends by itself."""
        child, log = self.start(manifests, workload, name, index)
        assert child.wait(END_S), tail(log)
        return child.exit_code, log.read_text()

    def start_pod(self, manifests: Manifests, index: int) -> Child:
        code, told = self.end(manifests, POD, "init", index)
        assert code == 0, told
        return self.start(manifests, POD, "duewheel", index)[0]

    def close(self) -> None:
        for child in self._children:
            child.stop(30)


def is_resharding(shard: WholeShard) -> bool:
    """Whether shard 0 is sealed, or there are several already."""
    progress = all_shards(shard.settings)[0].progress
    return progress.sealed_for is not None or progress.shards > 1


@pytest.fixture
def pods(shard: WholeShard, tmp_path: Path) -> Iterator[Pods]:
    with closing(Pods(tmp_path / "pods", shard.config)) as pods:
        yield pods


@pytest.fixture
def shard(
    tmp_path: Path,
    broker: SharedBroker,
    unique_name: Callable[[str], str],
    require: Callable[[object, str], None],
) -> Iterator[WholeShard]:
    require(HELM, MISSING)
    name = unique_name("app")[-40:].lstrip("-")
    with closing(WholeShard(tmp_path, broker.bootstrap_servers, name)) as shard:
        yield shard


def test_an_upgrade_to_more_shards_delivers_each_timer_once(shard: WholeShard, pods: Pods) -> None:
    one, two = (pods.release(number) for number in (1, 2))
    first = pods.start_pod(one, 0)
    shard.deliver_one(b"probe")
    assert pods.end(one, HOOK, "reshard")[1].endswith("there are 1 shards: nothing to change\n")
    shard.forget()
    known = schedule(shard, TIMERS, seed=11)

    killed, log = pods.start(two, HOOK, "reshard")
    wait_until(lambda: is_resharding(shard), lambda: tail(log), every_s=0)
    killed.end(signal.SIGKILL, END_S)
    code, told = pods.end(two, HOOK, "reshard")
    assert code == 0, told
    assert first.wait(END_S)
    assert first.exit_code == Fenced.exit_code
    # Its container starts again before Helm has written the new number.
    code, told = pods.end(one, POD, "duewheel")
    assert code == RecoveryRefused.exit_code, told

    pods.start(two, POD, "duewheel", 0)
    pods.start_pod(two, 1)
    shard.wait(lambda: len(shard.arrivals.first) == len(known))
    assert pods.end(two, HOOK, "reshard")[1].endswith("there are 2 shards: nothing to change\n")
    after = schedule(shard, 40, seed=12, prefix=b"after")  # a double would come before these
    shard.wait(lambda: len(shard.arrivals.first) == len(known) + len(after))
    judge(shard, known | after)


def test_a_refusal_is_in_the_log_of_the_job(shard: WholeShard, pods: Pods) -> None:
    code, told = pods.end(pods.release(9), HOOK, "reshard")
    assert code == RecoveryRefused.exit_code
    assert "shard 3 of 9 would have no partition" in told
