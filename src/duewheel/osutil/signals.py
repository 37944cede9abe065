"""Signals: an event that stops a process, and an interrupt for commands that clean up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from duewheel.errors import DuewheelError

log = structlog.get_logger(__name__)


@contextmanager
def interruptible() -> Iterator[None]:
    """In the with block SIGTERM, SIGINT and the end of the terminal raise KeyboardInterrupt, once.
    After the first they are ignored to the end of the process: a second one would cut the clean-up
    short, or, after the block, end the process without its exit code. Main thread only.
    """
    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        if not interrupted:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set in the with block. Main thread only."""
    stopping = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ignore_kafka_errors_after_stop(stopping: threading.Event) -> Iterator[None]:
    """Once the event is set, logs retriable errors of the with block instead of raising them: a
    stopping process does not wait for Kafka.
    """
    try:
        yield
    except DuewheelError as error:
        if not (error.retriable and stopping.is_set()):
            raise
        log.info("stopped without Kafka's answer", reason=str(error))
