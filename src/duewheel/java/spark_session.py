"""Spark, for as long as ingest needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duewheel.config.settings import Settings
from duewheel.java.class_archive import archive_options
from duewheel.java.find import find_java
from duewheel.java.spark_archive import spark_archive
from duewheel.osutil import logs
from duewheel.streaming.session import Session, SessionOptions, start_session, stop_session


@contextmanager
def spark_session(
    settings: Settings,
    *,
    app_name: str,
    work_dir: Path,
) -> Iterator[Session]:
    """A session, for the length of a with block in the main thread.

    Args:
        settings: of the shard.
        app_name: shown by cluster managers.
        work_dir: for everything that Spark writes but its checkpoint.

    Raises:
        ConfigError: there is no Java, or the environment asks for Spark Connect.
        SparkUnavailable: the cluster's master is away, or refuses the application.
        DuewheelError: the JVM does not start.
    """
    java = find_java()
    session = start_session(
        SessionOptions(
            app_name=app_name,
            work_dir=work_dir,
            java_home=java.home,
            master=settings.ingest.spark_master,
            driver_memory=settings.ingest.driver_memory,
            log_pattern=logs.jvm_pattern("ingest", logs.resolve(settings.log.format)),
            java_options=archive_options(spark_archive(java)),
            conf=settings.spark_conf(),
        )
    )
    try:
        yield session
    finally:
        stop_session(session)
