"""Kafka's MirrorMaker 2, as a process of its own."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.harness.lost_cluster import PREFIX

from duewheel.dev.broker import JVM_OPTIONS
from duewheel.dev.ivy import Ivy, pyspark_jars
from duewheel.dev.jars import pinned
from duewheel.java.find import Java
from duewheel.osutil.child_process import Child

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "recovery.md"
_LOGGING = ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")
# Beside those of docs/recovery.md: the replicas and intervals of a test.
_SETTINGS = """\
clusters = A, B
A.bootstrap.servers = {source}
B.bootstrap.servers = {target}
listeners = http://127.0.0.1:0
B->A.enabled = false
replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
refresh.topics.interval.seconds = 2
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
"""
_LOG = """\
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/mirror.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}} %m%n
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""


def mirror_jars(java: Java, scratch: Path) -> list[Path]:
    """MirrorMaker and its dependencies, of the development broker's version; fetched."""
    (kafka,) = (
        j.coordinate for j in pinned() if j.coordinate.startswith("org.apache.kafka:kafka_")
    )
    coordinate = f"org.apache.kafka:connect-mirror:{kafka.rpartition(':')[2]}"
    with Ivy(java, scratch) as ivy:
        return ivy.resolve([coordinate], transitive=True)


class MirrorMaker:
    """Copies topics from one cluster to another, under their names after `A.`."""

    def __init__(
        self,
        java: Java,
        jars: Sequence[Path],
        folder: Path,
        source: str,
        target: str,
        topics: Sequence[str],
    ) -> None:
        """Starts nothing yet. `jars` are those of `mirror_jars`; `folder` is made."""
        assert PREFIX == "A."
        folder.mkdir()
        self._log, self._settings = folder / "log4j2.properties", folder / "mm2.properties"
        self._log.write_text(_LOG.format(folder=folder))
        (shown,) = re.findall(
            r"^```properties\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL
        )
        chosen = re.sub(r"(?m)^A->B.topics = .*$", f"A->B.topics = {','.join(topics)}", shown)
        self._settings.write_text(_SETTINGS.format(source=source, target=target) + chosen)
        logging = [next(pyspark_jars().glob(f"{name}-[0-9]*.jar")) for name in _LOGGING]
        own = [jar for jar in jars if "slf4j" not in jar.name]
        self._command = [
            str(java.executable),
            "-Xmx512m",
            *JVM_OPTIONS,
            f"-Dlog4j2.configurationFile={self._log}",
            "-cp",
            os.pathsep.join(map(str, [*logging, *own])),
            "org.apache.kafka.connect.mirror.MirrorMaker",
            str(self._settings),
        ]
        self._process: Child | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        with self._settings.with_suffix(".out").open("ab") as output:
            self._process = Child(self._command, stdout=output, stderr=output)

    def kill(self) -> None:
        """With SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.end(signal.SIGKILL, 30)
