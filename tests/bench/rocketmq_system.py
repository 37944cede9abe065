"""RocketMQ, unmodified, from its published artifacts; load and consumer in Java: see rocketmq/.

A name server and one broker with its file wheel, asynchronous flush, and a heap of 2 GB. Limits of
a pull are raised so that the consumer does not hold deliveries up; all else is as it comes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.system import (
    BODY_BYTES,
    Receipts,
    SendResult,
    TimerLoad,
    allocated_bytes,
    times_file,
    write_times,
)

from duewheel.dev.listeners import HOST, free_ports
from duewheel.java.find import find_java
from duewheel.osutil.child_process import Child

VERSION = "5.5.0"
_PROJECT = Path(__file__).with_name("rocketmq")
_TOPIC = "timers"  # a topic with the name of the broker is the system's
_START_S = 300.0  # on a loaded machine
_BEHIND_S = 0.05  # between two looks: the broker walks all its files to answer
_BROKER_JAVA = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=4g", "-XX:+UseG1GC")
_SETTINGS = {
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "autoCreateTopicEnable": "true",
    "timerEnableRetryUntilSuccess": "true",
    "recallMessageEnable": "true",
    "waitTimeMillsInSendQueue": "10000",
    **{
        f"max{limit}On{where}": value
        for limit, value in (("TransferCount", "512"), ("TransferBytes", "1048576"))
        for where in ("MessageInMemory", "MessageInDisk")
    },
}


def build() -> str:
    """Compile the load and the consumer, and fetch RocketMQ, unless that is done; returns the class
    path."""
    target = _PROJECT / "target"
    done, sources = target / "done", [_PROJECT / "pom.xml", *(_PROJECT / "src").rglob("*.*")]
    if not done.exists() or done.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        command = ["mvn", "-q", "-B", "-f", str(_PROJECT / "pom.xml"), "compile"]
        subprocess.run([*command, "dependency:copy-dependencies"], check=True)
        done.touch()
    return os.pathsep.join([str(target / "classes"), str(target / "dependency" / "*")])


class RocketMqSystem:
    """See the module."""

    def __init__(self, path: Path, classpath: str, precision_ms: int = 1000) -> None:
        """Starts nothing."""
        finest = "" if precision_ms == 1000 else f", precision {precision_ms} ms"
        self.name = f"RocketMQ {VERSION}{finest}"
        self.config: Mapping[str, Any] = {
            "version": VERSION,
            "precision_ms": precision_ms,
            "heap_mb": 2048,
            "queues": 4,
            "flush": "asynchronous",
        }
        self._path = path
        self._settings = {**_SETTINGS, "timerPrecisionMs": str(precision_ms)}
        self._java = [str(find_java().executable), f"-Duser.home={path}", "-cp", classpath]
        self.receipts = Receipts(path / "receipts")
        self._broker: Child | None = None
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(ThreadPoolExecutor(thread_name_prefix="load"))

    def start(self) -> None:
        name_server, port = free_ports(2)  # the broker also takes two others near its own
        address = f"{HOST}:{name_server}"
        self._write("namesrv.conf", {"listenPort": str(name_server)})
        store = self._path / "store"
        self._write(
            "broker.conf",
            {
                "brokerName": "bench",
                "brokerId": "0",
                "brokerIP1": HOST,
                "listenPort": str(port),
                "namesrvAddr": address,
                "storePathRootDir": str(store),
                "storePathCommitLog": str(store / "commitlog"),
                **self._settings,
            },
        )
        self._name_server = self._server("namesrv.NamesrvStartup", "namesrv.conf", "-Xmx256m")
        self._stack.callback(self._name_server.stop, 10)
        self._stack.callback(self._kill)
        self.resume()
        options = ["-Drocketmq.client.logUseSlf4j=true", *_LOGGING]
        self._load = Client(
            [self._java[0], "-Xmx1536m", *options, *self._java[1:], "bench.Load"],
            [address, _TOPIC, str(BODY_BYTES)],
            self._path / "load.log",
        )
        self._stack.callback(self._load.stop)
        self._load.answer(0, _START_S)  # the topic is there
        self._consumer = Client(
            [self._java[0], "-Xmx1g", *options, *self._java[1:], "bench.Receipts"],
            [address, _TOPIC, str(self.receipts.path)],
            self._path / "consumer.log",
        )
        self._stack.callback(self._consumer.stop)
        self._consumer.answer(0, _START_S)
        self._sent = 0

    def prepare(self, load: TimerLoad) -> TimerLoad:
        write_times(self._path, load)
        return load

    def send(self, load: TimerLoad) -> Future[SendResult]:
        path = times_file(self._path, load)
        answer = self._load.ask(f"send {{}} {path} {load.first}")
        return self._pool.submit(self._sent_after, answer, len(load))

    def _sent_after(self, answer: Future[dict[str, Any]], count: int) -> SendResult:
        fields = answer.result()
        sent = SendResult(fields["begun_ms"], fields["acked_ms"], fields["failed"])
        self._sent += count - sent.failed
        return sent

    def enqueued(self) -> int:
        """The broker says how many are stored and not in the wheel; those sent are known here."""
        time.sleep(_BEHIND_S)
        sent = self._sent
        return sent - int(self._load.ask("behind {}").result(_START_S)["behind"])

    def pids(self) -> Mapping[str, Sequence[int]]:
        assert self._broker is not None
        return {
            "broker": [self._broker.pid],
            "name server": [self._name_server.pid],
            "load": [self._load.pid],
            "consumer": [self._consumer.pid],
        }

    def disk_bytes(self) -> Mapping[str, int]:
        return {"local": allocated_bytes(self._path / "store")}

    def halt(self) -> None:
        assert self._broker is not None
        broker, self._broker = self._broker, None
        broker.stop(60)

    def resume(self) -> None:
        self._broker = self._server("broker.BrokerStartup", "broker.conf", *_BROKER_JAVA)

    def stop(self) -> None:
        self._stack.close()

    def _kill(self) -> None:
        """Of the broker: its files are not needed any more, and an orderly end takes 10 s."""
        if self._broker is not None:
            self._broker.end(signal.SIGKILL, 10)

    def _write(self, name: str, settings: Mapping[str, str]) -> None:
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self._path / name).write_text(lines)

    def _server(self, main: str, config: str, *options: str) -> Child:
        with (self._path / f"{main}.log").open("ab") as log:
            command = [self._java[0], *options, *_LOGGING, *self._java[1:]]
            command += [f"org.apache.rocketmq.{main}", "-c", str(self._path / config)]
            env = {**os.environ, "ROCKETMQ_HOME": str(self._path)}
            return Child(command, stdout=log, stderr=log, env=env)


_LOGGING = (f"-Drmq.logback.configurationFile={_PROJECT / 'target/classes/bench.logback.xml'}",)


class Client:
    """A Java program that ends with its stdin, and may answer lines with JSON."""

    def __init__(self, command: Sequence[str], arguments: Sequence[str], log: Path) -> None:
        with log.open("wb") as errors:
            self._popen = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._log = log
        self._lock = threading.Lock()
        self._asked: dict[int, Future[dict[str, Any]]] = {0: Future()}
        threading.Thread(target=self._read, name=log.stem, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def ask(self, command: str) -> Future[dict[str, Any]]:
        """Send a command; `{}` in it becomes its id."""
        with self._lock:
            number, answer = len(self._asked), Future[dict[str, Any]]()
            self._asked[number] = answer
            assert self._popen.stdin is not None
            self._popen.stdin.write(command.format(number) + "\n")
            self._popen.stdin.flush()
        return answer

    def answer(self, number: int, timeout_s: float) -> dict[str, Any]:
        return self._asked[number].result(timeout_s)

    def stop(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        try:
            self._popen.wait(10)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            if not line.startswith("{"):
                continue
            fields = json.loads(line)
            answer = self._asked[fields["id"]]
            if "error" in fields:
                answer.set_exception(RuntimeError(f"{fields['error']}: see {self._log}"))
            else:
                answer.set_result(fields)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(RuntimeError(f"the program has ended: see {self._log}"))
