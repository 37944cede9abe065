"""Spark, for as long as one of the shell's processes needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from duewheel.config.settings import Settings
from duewheel.java.find import find_java
from duewheel.java.jars import connector_jars
from duewheel.osutil import logs
from duewheel.streaming.session import Session, SessionOptions, start_session, stop_session


@contextmanager
def spark_session(
    settings: Settings,
    role: Literal["ingest", "audit"],
    *,
    app_name: str,
    work_dir: Path,
    driver_memory: str,
    master: str = "local[*]",
) -> Iterator[Session]:
    """A session, for the length of a with block in the main thread.

    Args:
        settings: further Spark settings, and the format of logs.
        role: as which its JVM logs.
        app_name: shown by cluster managers.
        work_dir: for everything that Spark writes but its checkpoint.
        driver_memory: heap of the JVM, such as "2g".
        master: where tasks run.

    Raises:
        ConfigError: there is no Java, or the environment asks for Spark Connect.
        SparkUnavailable: the cluster's master is away, or refuses the application.
        DuewheelError: the jars cannot be fetched, or the JVM does not start.
    """
    java = find_java()
    session = start_session(
        SessionOptions(
            app_name=app_name,
            work_dir=work_dir,
            java_home=java.home,
            jars=connector_jars(java),
            master=master,
            driver_memory=driver_memory,
            log_pattern=logs.jvm_pattern(role, logs.resolve(settings.log.format)),
            conf=settings.spark_conf(),
        )
    )
    try:
        yield session
    finally:
        stop_session(session)
