"""Whether the shard's files on this host are of the present assignment of partitions.

After `duewheel reshard` the files of a removed shard, and those of any shard until its next start,
have timers that are other shards' by now. The progress in Kafka shows that. A thread reads it, so
that no read of files waits for Kafka but those before its first answer, _FIRST_S at most; while
Kafka does not answer, the last read counts. A command that changes schedules reads it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from threading import Event

import structlog

from duewheel import factory
from duewheel.checkpoints.ownership import require_not_sealed
from duewheel.checkpoints.progress import NOBODY, Progress
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError, Fenced, Reassigned, RecoveryRefused
from duewheel.ops.files import open_state
from duewheel.threads import Worker

_INTERVAL_S = 2.0
_AGAIN_S = 10.0
_FIRST_S = 5.0

log = structlog.get_logger(__name__)


class AssignmentWatch:
    """See the module's head. `require` may be called by any thread.

    Attributes:
        removed: why the shard is not ready, if a reshard has removed it: that alone. A shard that
            stays delivers again after its next start, and until then its files' reasons hold.
    """

    _thread: Worker

    def __init__(self, settings: Settings) -> None:
        """Nothing runs before `start`."""
        self._settings = settings
        self._reason = ""
        self._was_read = Event()  # or the wait for it is over
        self.removed: Mapping[str, str] = {}

    def start(self) -> None:
        """Begins to read; may be called again after `stop`."""
        self._thread = Worker("assignment watch", self._run, again_after_s=_AGAIN_S)
        self._thread.start()

    def stop(self) -> None:
        """Reads no more; called after `start`. The thread, which may be in a call of Kafka, is not
        waited for.
        """
        self._thread.ending.set()

    def require(self) -> None:
        """Refuses files of another assignment.

        Raises:
            Reassigned: with the reason.
        """
        if self._reason:
            raise Reassigned(self._reason)

    def require_after_read(self) -> None:
        """As `require`, after the first read: the `run` that replaces files may be yet to come."""
        if not self._was_read.wait(_FIRST_S):
            self._was_read.set()
        self.require()

    def _run(self) -> None:
        ending, error_before = self._thread.ending, ""
        with closing(
            factory.progress_reader(self._settings, factory.StoppableClock(ending))
        ) as reader:
            while not ending.is_set():
                try:
                    seen = reader.newest()
                    self._note(None if seen is None else seen.progress)
                    error_before = ""
                except DuewheelError as error:
                    if str(error) != error_before and not ending.is_set():
                        error_before = str(error)
                        log.warning("the shard's progress cannot be read", reason=error_before)
                self._was_read.set()
                ending.wait(_INTERVAL_S)

    def _note(self, progress: Progress | None) -> None:
        reason = "" if progress is None else _outdated(self._settings, progress)
        if reason and reason != self._reason:
            log.warning("the files are not served", reason=reason)
        self._reason = reason
        has_partitions = progress is None or bool(progress.partitions)
        self.removed = {"resharded": reason} if reason and not has_partitions else {}


def require_present_files(settings: Settings) -> None:
    """Refuses files from which nothing may be changed, by one read of the progress.

    Raises:
        Reassigned: they are of another assignment.
        Fenced: another data directory has taken the shard over.
        KafkaUnavailable: no answer in time.
    """
    with closing(factory.progress_reader(settings, factory.StoppableClock(Event()))) as reader:
        seen = reader.newest()
    if seen is None:
        return
    if outdated := _outdated(settings, seen.progress):
        raise Reassigned(f"nothing was written; {outdated}")
    if taken_over := _taken_over(settings, seen.progress):
        raise Fenced(f"nothing was written; {taken_over}")


def _outdated(settings: Settings, progress: Progress) -> str:
    """Why the files are of an earlier assignment than the progress; empty if they are not. Those of
    a sealed shard that is not removed are the present ones until its partitions are reassigned.
    """
    if not progress.partitions:
        try:
            require_not_sealed(progress)
        except RecoveryRefused as removed:
            return str(removed)
    with suppress(DuewheelError), open_state(settings) as state:  # reads have the reason
        mirror = state.mirror()
        if mirror is not None and mirror.progress.assignment_epoch < progress.assignment_epoch:
            return (
                "the files are of an earlier assignment of partitions: the next start of shard "
                f"{progress.shard} of {progress.shards} replaces them"
            )
    return ""


def _taken_over(settings: Settings, progress: Progress) -> str:
    """Why the files are a former owner's; empty if they are not. Those of a standby follow the
    owner's, whose progress they mirror.
    """
    with suppress(DuewheelError), open_state(settings) as state:
        mirror = state.mirror()
        was_owner = mirror is not None and mirror.progress.owner == state.uuid
        if was_owner and progress.owner not in {state.uuid, NOBODY}:
            return (
                f"the data directory {progress.owner} has taken shard {progress.shard} over, this "
                f"one is {state.uuid}: do it where the shard runs"
            )
    return ""
