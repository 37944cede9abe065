"""Starts a Spark session: one JVM on this host, with settings chosen by measurement.

- Classic Spark only: with Spark Connect the sink would run in another process, away from its files.
- Spark writes below one work directory only, not in the current one.
- All settings pass through a file that only this user can read, deleted once the JVM has started.
  Options on the command line, secrets included, would be visible to every user of the host.
- The JVM logs in the same form as this process, to the same stderr; whatever else it prints becomes
  log lines (log_relay.py).
- The JVM ends with this process, also while it starts. By itself it would see the end only after
  its start, and never if the folder that it reports its port to is removed by then.

The two checkpoint settings spare Spark several forked processes per batch (about 50 ms). They fit a
local directory only, such as the data directory.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from duewheel.errors import ConfigError, DuewheelError, SparkUnavailable
from duewheel.osutil.log_relay import LogRelay
from duewheel.streaming.executors import is_local, require_master

# Without the larger stack, stopping a query overflows it in one of Spark's regular expressions.
# Counters for jstat would be written to a file twenty times a second.
_JAVA_OPTIONS = "-Xss8m -XX:-UsePerfData"
# No rows pass through a local JVM, so the first compiler is enough: the second one takes processor
# time and memory. Spark lives in 50 MB; the JVM would begin with a 64th of the host's memory, and
# touch it all.
_LOCAL_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -Xms64m -Xmn32m"
# The JVM would choose one by the host's processors and memory: a fixed one makes figures of several
# hosts comparable. No rows pass through the JVM, so the collectors hardly differ. A pause delays no
# delivery.
_COLLECTOR = "-XX:+UseParallelGC"
_PR_SET_PDEATHSIG = 1  # of prctl
_CHOOSES_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")

# Spark gives a process 15 s to connect and for each of its next messages: too few on a busy host.
_CONNECT_S = "300"

_DEFAULTS = {
    "spark.python.authenticate.socketTimeout": f"{_CONNECT_S}s",
    # Hadoop sets the mode of each file in the checkpoint itself, whatever the umask.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",  # not for streams: Spark only warns of it
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}

_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_ON_A_CLUSTER = {
    # Without a bound the first application has all cores of a standalone cluster. Two executors
    # busy with fetching keep a driver busy.
    "spark.cores.max": "4",
    # The timers of a task come with its result: more would be fetched in a second round trip.
    "spark.task.maxDirectResultSize": "64m",
}

_LOG4J2 = """\
status=error
rootLogger.level=warn
rootLogger.appenderRef.stderr.ref=stderr
appender.stderr.type=Console
appender.stderr.name=stderr
appender.stderr.target=SYSTEM_ERR
appender.stderr.layout.type=PatternLayout
appender.stderr.layout.alwaysWriteExceptions=false
appender.stderr.layout.pattern={pattern}
"""
# Their warnings are normal here: no native Hadoop, a batch longer than its trigger during catch-up,
# no job to cancel at the stop of an idle query.
_QUIET_LOGGERS = (
    "org.apache.hadoop.util.NativeCodeLoader",
    "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor",
    "org.apache.spark.scheduler.DAGScheduler",
)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The parameters of a session."""

    app_name: str  # shown by cluster managers
    work_dir: Path  # for all files that Spark writes, except its checkpoint
    java_home: Path  # Spark's JAVA_HOME
    master: str = "local[*]"  # where tasks run
    # The program that Spark runs as Python, unless `conf` has another one
    python: str = sys.executable
    driver_memory: str = "512m"  # heap of the JVM
    log_pattern: str = "%d %p %c{1} %m%n"  # log4j2 pattern of a line
    java_options: Sequence[str] = ()  # further options of the JVM; those in `conf` take precedence
    # Further Spark settings, which take precedence over the defaults
    conf: Mapping[str, str] = field(default_factory=dict)


def scratch_folder(work_dir: Path) -> Path:
    """Folder for temporary files; start_session() empties it."""
    return work_dir.absolute() / "scratch"


_log = structlog.get_logger(__name__)


class _JvmStart:
    """Makes the kernel kill the JVM when this process ends, as Child does with other programs, and
    gives it the output of a LogRelay. pyspark starts the JVM by a fork of its own: settings made in
    the child survive `exec`.
    """

    def __init__(self) -> None:
        self.parent = 0  # this process, while its main thread starts the JVM
        self.output = -1  # descriptor of the JVM's output meanwhile
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        if self.parent:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            os.dup2(self.output, 1)
            os.dup2(self.output, 2)
            if os.getppid() != self.parent:  # it ended before the request
                os._exit(1)


_jvm_start = _JvmStart()

Session = SparkSession  # for modules that pass one on and must not import pyspark


def start_session(options: SessionOptions) -> Session:
    """Starts the JVM and the session, on the main thread only. Sets this process's environment.

    Raises:
        ConfigError: the environment asks for Spark Connect.
        SparkUnavailable: the cluster's master is away, or refuses the application.
        DuewheelError: the JVM does not start.
    """
    _refuse_connect()
    begun_s = time.monotonic()
    _log.info("starting Spark", version=pyspark.__version__, master=options.master)
    address = "127.0.0.1" if is_local(options.master) else require_master(options.master)
    work = options.work_dir.absolute()
    scratch, properties, log4j2 = (
        scratch_folder(work),
        work / "properties",
        work / "log4j2.properties",
    )
    # A killed JVM leaves files there. The data directory's lock keeps other processes out.
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700, parents=True)  # a killed task leaves message bodies there
    log4j2.write_text(_log4j2(options.log_pattern))
    conf = _conf(options, scratch, log4j2)
    _listen_on_loopback(options.master, conf, address)
    _write_properties(properties, conf)
    _set_environment(options, properties, scratch)
    on_interrupt, before = signal.getsignal(signal.SIGINT), tempfile.tempdir
    # pyspark creates a folder for the JVM's port: a kill during the start would leave it in /tmp.
    tempfile.tempdir = str(scratch)
    relay = LogRelay("jvm")
    _jvm_start.parent, _jvm_start.output = os.getpid(), relay.write_end
    try:
        session = SparkSession.builder.getOrCreate()
    except PySparkException as error:
        raise DuewheelError(f"Spark does not start on {options.java_home}: {error}") from error
    except Py4JError as error:
        raise _not_started(options.master, error) from error
    finally:
        _jvm_start.parent = 0
        relay.close_write_end()
        properties.unlink()
        tempfile.tempdir = before
        # pyspark has installed its own handler.
        signal.signal(signal.SIGINT, on_interrupt)
    assert hasattr(session, "_jvm"), "a classic session, not Spark Connect's"
    _log.info("Spark has started", took_s=round(time.monotonic() - begun_s, 1))
    return session


def stop_session(session: Session) -> None:
    """Ends the JVM, if it has not ended by itself."""
    try:
        session.stop()
    except (Py4JError, OSError) as error:
        _log.warning("Spark's JVM has ended already", reason=str(error))


def _refuse_connect() -> None:
    if os.environ.get("SPARK_REMOTE"):
        raise ConfigError(
            "SPARK_REMOTE asks for Spark Connect, which cannot run the sink: unset it"
        )
    if os.environ.get("SPARK_API_MODE", "classic") != "classic":
        raise ConfigError(
            "SPARK_API_MODE asks for Spark Connect, which cannot run the sink: unset it"
        )


def _log4j2(pattern: str) -> str:
    lines = [_LOG4J2.format(pattern=pattern)]
    for number, name in enumerate(_QUIET_LOGGERS):
        lines.append(f"logger.quiet{number}.name={name}\nlogger.quiet{number}.level=error\n")
    return "".join(lines)


def _conf(options: SessionOptions, scratch: Path, log4j2: Path) -> dict[str, str]:
    java_options = (
        f'{_JAVA_OPTIONS} "-Djava.io.tmpdir={scratch}" -Dlog4j2.configurationFile={log4j2.as_uri()}'
    )
    for option in options.java_options:
        java_options += f' "{option}"'  # paths in it may have spaces
    own_java_options = options.conf.get("spark.driver.extraJavaOptions", "")
    # Spark puts the latter before the former.
    all_own = f"{own_java_options} {options.conf.get('spark.driver.defaultJavaOptions', '')}"
    if not _CHOOSES_COLLECTOR.search(all_own):  # the JVM does not start with two collectors
        java_options = f"{java_options} {_COLLECTOR}"
    if is_local(options.master):  # on a cluster timers may pass through the JVM
        java_options = f"{_LOCAL_JAVA_OPTIONS} {java_options}"
    return {
        **_DEFAULTS,
        **(_LOCAL if is_local(options.master) else _ON_A_CLUSTER),
        "spark.master": options.master,
        "spark.app.name": options.app_name,
        "spark.driver.memory": options.driver_memory,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **options.conf,
        "spark.driver.extraJavaOptions": f"{java_options} {own_java_options}".strip(),
    }


def _not_started(master: str, error: Py4JError) -> DuewheelError:
    """In one line: py4j's text has the Java exception in its second, and then the stack traces."""
    lines = str(error).splitlines()
    reason = lines[min(1, len(lines) - 1)].strip(": ") if lines else type(error).__name__
    if is_local(master):
        return DuewheelError(f"Spark does not start: {reason}")
    return SparkUnavailable(
        f"{master} has not taken the application: it must be a Spark {pyspark.__version__} that "
        f"reaches the driver (spark.driver.host in [spark]): {reason}"
    )


def _set_environment(options: SessionOptions, properties: Path, scratch: Path) -> None:
    """Sets the variables that pyspark reads only from the environment."""
    os.environ["JAVA_HOME"] = str(options.java_home)
    # Without it Spark's workers run the `python3` of the PATH.
    os.environ["PYSPARK_PYTHON"] = options.conf.get("spark.pyspark.python", options.python)
    # For connections of this process to the JVM; `_DEFAULTS` has it for all others.
    os.environ["SPARK_AUTH_SOCKET_TIMEOUT"] = _CONNECT_S
    # Spark would start two Python processes to look for data sources of other packages.
    os.environ["PYSPARK_DRIVER_PYTHON"] = "none"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f'--properties-file "{properties}" pyspark-shell'
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch)
    # Another Spark installation on this host may have another version than pyspark.
    os.environ.pop("SPARK_HOME", None)


def _listen_on_loopback(master: str, conf: dict[str, str], address: str) -> None:
    """Keeps Spark's web interface, which has no login, off the network.

    Only SPARK_LOCAL_IP decides where it listens; by default on all interfaces. The driver would
    advertise the same address, so on a cluster it gets one of its own: `address`, on the way to the
    master. An operator who sets the variable has chosen both.
    """
    if not is_local(master):
        if os.environ.get("SPARK_LOCAL_IP"):
            return
        conf.setdefault("spark.driver.host", address)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def _write_properties(path: Path, conf: Mapping[str, str]) -> None:
    """A Java properties file, readable by its owner only."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.writelines(f"{_escape(key)}={_escape(value)}\n" for key, value in conf.items())


def _escape(text: str) -> str:
    r"""Text for java.util.Properties: \uXXXX for all characters but ASCII letters and digits."""
    units = text.encode("utf-16-be")
    pairs = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(
        chr(unit) if unit < 128 and chr(unit).isalnum() else f"\\u{unit:04x}" for unit in pairs
    )
