"""Spark, for as long as ingest needs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from duewheel.config.settings import Settings
from duewheel.java.class_archive import archive_options
from duewheel.java.find import find_java
from duewheel.java.spark_archive import spark_archive
from duewheel.osutil import logs
from duewheel.streaming.executors import is_local
from duewheel.streaming.fork_server import forking_python
from duewheel.streaming.session import Session, SessionOptions, start_session, stop_session


@contextmanager
def spark_session(settings: Settings, *, app_name: str, work_dir: Path) -> Iterator[Session]:
    """A session in the with block, in the main thread. Spark writes to `work_dir`, except its
    checkpoint; cluster managers show `app_name`.

    Raises:
        ConfigError: there is no Java, or the environment asks for Spark Connect.
        SparkUnavailable: the cluster's master is away, or refuses the application.
        DuewheelError: the JVM does not start.
    """
    java, master = find_java(), settings.ingest.spark_master
    with ExitStack() as until_the_end:
        # On a cluster the executors start their tasks by the same path, where no fork server is.
        python = sys.executable
        if is_local(master):
            python = until_the_end.enter_context(forking_python(work_dir))
        session = start_session(
            SessionOptions(
                app_name=app_name,
                work_dir=work_dir,
                java_home=java.home,
                master=master,
                python=python,
                driver_memory=settings.ingest.driver_memory,
                log_pattern=logs.jvm_pattern("ingest", logs.resolve(settings.log.format)),
                java_options=archive_options(spark_archive(java)),
                conf=settings.spark_conf(),
            )
        )
        until_the_end.callback(stop_session, session)
        yield session
