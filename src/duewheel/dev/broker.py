"""A real single-node Kafka for development, demo and tests, run from its published jars.

The data directory:

    lock                held while a broker is run here
    server.properties   rewritten at every start: broker.properties, ports, extra properties; mode
                        0600, as it may have passwords
    log4j2.properties   logging to server.log, rolled
    server.log          Kafka's own log
    broker.out          the JVM's own output
    data/               Kafka's files; formatted as data.new, and renamed when complete
    client.toml, login/ only with a login: sasl_ssl.py

Invariant: the broker never outlives the process that started it. A normal exit stops it cleanly; a
kill of the starter also kills the broker (child_process.py), and removes a temporary data directory
(tempdir.py).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from duewheel.config.credentials import in_clear
from duewheel.dev.ivy import pyspark_jars
from duewheel.dev.jars import broker_archive, broker_jars
from duewheel.dev.listeners import HOST, free_ports, in_use, listener_properties
from duewheel.dev.sasl_ssl import SaslSsl, write_secret
from duewheel.errors import ConfigError, DuewheelError, KafkaUnavailable, Locked
from duewheel.java.class_archive import archive_options
from duewheel.java.find import Java, find_java
from duewheel.osutil.child_process import Child
from duewheel.osutil.signals import interruptible
from duewheel.osutil.tempdir import ScratchFolder

_TEMPLATE = Path(__file__).with_name("broker.properties")
_STARTED = b"Kafka Server started"
_START_TIMEOUT_S = 120.0  # 3 s on a quiet machine; a loaded one took 10
_STOP_TIMEOUT_S = 30.0
_PORT_ATTEMPTS = 5

# Kafka's own jars bring no logging backend; Spark's come first so that their slf4j 2 wins.
_FROM_SPARK = ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core", "scala-library")

# The C1 compiler and the serial collector start fastest and leave the second core to others.
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true")

_LOG4J2 = """\
status=error
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName={folder}/server.log
appender.file.filePattern={folder}/server.log.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %c{{1}} %m%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=32MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=2
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
"""


class PortTaken(ConfigError):
    """The requested port is in use."""


class DevBroker:
    """A Kafka broker on loopback. A context manager; not thread-safe.

        with DevBroker() as broker:
            producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

    `restart` keeps the ports, so that clients can reconnect.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        port: int = 0,
        sasl_ssl: bool = False,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        java_options: Sequence[str] = JVM_OPTIONS,
        java: Java | None = None,
        cluster_id: str | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            data_dir: is kept, and its data used again; None: a temporary one, which `stop` removes.
            port: 0: a free one.
            sasl_ssl: listen only with TLS and a login (sasl_ssl.py).
            properties: override the template's.
            java_options: the default starts fast and is slower under load.
            java: None: the result of `find_java`.
            cluster_id: joins a cluster of several nodes; `properties` must then name listeners and
                voters.
        """
        self._cluster_id = cluster_id or new_cluster_id(uuid.uuid4())
        self._given_dir = data_dir
        self._fixed_port = port
        self._sasl_ssl = sasl_ssl
        self._properties = dict(properties or {})
        self._heap_mb = heap_mb
        self._java_options = java_options
        self._java = java
        self._classpath = ""
        self._ports = (0, 0)
        self._process: Child | None = None
        self._folder: Path | None = None
        self._scratch: ScratchFolder | None = None
        self._lock: TextIO | None = None
        self._login: SaslSsl | None = None

    @property
    def bootstrap_servers(self) -> str:
        """host:port for clients; after the start."""
        assert self._ports[0], "not started yet"
        return f"{HOST}:{self._ports[0]}"

    @property
    def pid(self) -> int:
        """The running broker's process id."""
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def data_dir(self) -> Path:
        """The folder in use, given or temporary; after the start."""
        assert self._folder is not None, "not started yet"
        return self._folder

    @property
    def client_config(self) -> Path | None:
        """The file with the tables [kafka] and [kafka.client] for a broker with a login."""
        return self._login.client_config if self._login else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the broker and waits until it answers; fetches jars and formats data if necessary.

        Raises:
            PortTaken: `port` was given and is in use.
            Locked: another broker runs in the folder.
            ConfigError: no Java is installed.
            DuewheelError: the jars cannot be fetched, or the broker does not start; has its output.
            KafkaUnavailable: the broker runs and does not answer.
        """
        assert self._process is None, "already running"
        self._java = self._java or find_java()
        self._open_folder()
        try:
            if self._sasl_ssl:
                self._login = SaslSsl.of(self.data_dir, self._java)
            self._classpath = _classpath(broker_jars(self._java))
            self._start_on_ports()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the broker, and kills it only after a time-out. A second call is harmless."""
        self._end()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = self._folder = None

    def kill(self) -> None:
        """Kills the broker; the data remains for `restart`."""
        assert self._process is not None, "not running"
        process, self._process = self._process, None
        process.end(signal.SIGKILL, _STOP_TIMEOUT_S)

    def restart(self) -> None:
        """Starts again on the same data and ports, after a clean stop if the broker still runs."""
        self._end()
        self.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the broker to end by itself; returns whether it has."""
        return self._process is None or self._process.wait(timeout_s)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop(_STOP_TIMEOUT_S)

    def _open_folder(self) -> None:
        """Creates the folder, and locks it while this object uses it."""
        if self._lock is not None:
            return
        if self._given_dir is None:
            self._scratch = ScratchFolder("duewheel-broker-")
            self._folder = self._scratch.path
        else:
            self._folder = self._given_dir.absolute()
            self._folder.mkdir(parents=True, exist_ok=True)
        lock = (self._folder / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise Locked(f"another broker runs in {self._folder}") from error
        self._lock = lock

    def _start_on_ports(self) -> None:
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            chosen_here = self._ports == (0, 0)
            if chosen_here:
                if self._fixed_port and in_use(self._fixed_port):
                    raise PortTaken(f"port {self._fixed_port} on {HOST} is in use")
                port, controller_port = free_ports(2)
                self._ports = (self._fixed_port or port, controller_port)
            try:
                self._start_once()
                return
            except PortTaken:
                # Another process took the port between our check and Kafka's bind.
                self._process = None
                if chosen_here:
                    self._ports = (0, 0)
                if attempt == _PORT_ATTEMPTS:
                    raise

    def _start_once(self) -> None:
        assert self._folder is not None
        log = self._folder / "server.log"
        self._write_settings()
        self._format_if_new()
        size_before = log.stat().st_size if log.exists() else 0
        self._process = self._run("kafka.Kafka", f"-Xmx{self._heap_mb}m", *self._java_options)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while _STARTED not in (news := _read_from(log, size_before)):
            if self._process.wait(0.05):
                # The JVM's own output has the reason if it ends by itself, even after Kafka has
                # begun its log.
                output = _tail(news.decode(errors="replace") + self._printed())
                if "Address already in use" in output:
                    raise PortTaken(f"a port of {self._ports} on {HOST} is in use")
                raise DuewheelError(f"the broker in {self._folder} did not start:\n{output}")
            if time.monotonic() > deadline:
                raise KafkaUnavailable(f"the broker in {self._folder} is not ready in time")
        options: Mapping[str, Any] = {}
        if self._login is not None:
            self._login.write_client_config(self.bootstrap_servers)
            options = in_clear(self._login.client_options)
        _await_answer(self.bootstrap_servers, options, deadline)

    def _write_settings(self, data: str = "data") -> None:
        port, controller_port = self._ports
        name = "SASL_SSL" if self._login else "PLAINTEXT"
        settings = {
            "log.dirs": f"{self._folder}/{data}",
            **listener_properties({name: port}, {name: name}, controller_port),
            **(self._login.broker_properties() if self._login else {}),
            **self._properties,
        }
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        write_secret(self.data_dir / "server.properties", _TEMPLATE.read_text() + lines)
        (self.data_dir / "log4j2.properties").write_text(_LOG4J2.format(folder=self._folder))

    def _format_if_new(self) -> None:
        data, new = self.data_dir / "data", self.data_dir / "data.new"
        if data.exists():
            return
        shutil.rmtree(new, ignore_errors=True)
        self._write_settings("data.new")
        arguments = ("format", "-t", self._cluster_id, "-c")
        tool = self._run("kafka.tools.StorageTool", *JVM_OPTIONS, arguments=arguments)
        if not tool.wait(_START_TIMEOUT_S):
            tool.end(signal.SIGKILL, _STOP_TIMEOUT_S)
        if tool.exit_code != 0:
            raise DuewheelError(f"cannot format {data}:\n{_tail(self._printed())}")
        new.rename(data)
        self._write_settings()

    def _run(self, main: str, *options: str, arguments: Sequence[str] = ()) -> Child:
        assert self._java is not None
        folder = self.data_dir
        command = [
            str(self._java.executable),
            *archive_options(broker_archive(self._java)),
            *options,
            f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
            "-cp",
            self._classpath,
            main,
            *arguments,
            f"{folder}/server.properties",
        ]
        with (folder / "broker.out").open("wb") as output:
            return Child(command, stdout=output, stderr=output)

    def _printed(self) -> str:
        return (self.data_dir / "broker.out").read_text(errors="replace")


def run_dev_broker(data_dir: Path | None, port: int, *, sasl_ssl: bool, as_json: bool) -> None:
    """Runs a broker until SIGTERM, SIGINT or SIGHUP, for `duewheel dev-broker run`.

    With `as_json` stdout has one line once the broker is ready: {"bootstrap_servers", "pid",
    "client_config"}, the last only with `sasl_ssl`.

    Raises:
        DuewheelError: the broker does not start, or ends by itself.
    """
    try:
        with interruptible(), DevBroker(data_dir, port=port, sasl_ssl=sasl_ssl) as broker:
            _announce(broker, as_json=as_json)
            broker.wait()
            raise DuewheelError(f"the broker in {broker.data_dir} has ended by itself")
    except KeyboardInterrupt:
        return


def _announce(broker: DevBroker, *, as_json: bool) -> None:
    config = broker.client_config
    if as_json:
        ready = {"bootstrap_servers": broker.bootstrap_servers, "pid": broker.pid}
        print(json.dumps(ready | ({"client_config": str(config)} if config else {})), flush=True)
        return
    login = f"Its clients need SASL_SSL, with the settings in {config}. " if config else ""
    print(
        f"Kafka is ready at {broker.bootstrap_servers} (process {broker.pid}, "
        f"files in {broker.data_dir}). {login}Ctrl-C stops it.",
        flush=True,
    )


def new_cluster_id(number: uuid.UUID) -> str:
    """A cluster id of 22 characters. It begins with a letter: Kafka's format tool would take one
    that begins with "-" for an option.
    """
    first, *rest = number.bytes
    octets = bytes([first & 0x7F, *rest])
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def _classpath(jars: Sequence[Path]) -> str:
    from_spark = [str(next(pyspark_jars().glob(f"{name}-[0-9]*.jar"))) for name in _FROM_SPARK]
    return os.pathsep.join([*from_spark, *map(str, jars)])


def _await_answer(bootstrap_servers: str, options: Mapping[str, Any], deadline: float) -> None:
    """Waits until a client gets a list of brokers with this one in it."""
    error: Exception | None = None
    while (left_s := deadline - time.monotonic()) > 0:
        left_ms = int(left_s * 1000) + 1
        try:
            client = KafkaAdminClient(
                bootstrap_servers=bootstrap_servers, bootstrap_timeout_ms=left_ms, **options
            )
            try:
                if client.describe_cluster()["brokers"]:
                    return
            finally:
                client.close()
        except KafkaError as failure:
            error = failure
        time.sleep(0.05)
    raise KafkaUnavailable(f"the broker at {bootstrap_servers} does not answer: {error}")


def _read_from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            # After a roll the awaited line can only be in the new file.
            file.seek(offset if path.stat().st_size >= offset else 0)
            return file.read()
    except FileNotFoundError:
        return b""


def _tail(text: str, lines: int = 25) -> str:
    return "\n".join(text.splitlines()[-lines:])
