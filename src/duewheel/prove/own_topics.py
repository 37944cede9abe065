"""The topics of a proof: created under its name, examined, and deleted at the end.

    1. The target comes first: if it must not be created or deleted, the proof ends within seconds
       and leaves one topic at most.
    2. The others are those that `duewheel init` makes.
    3. The examination of `duewheel doctor` runs with the proof's settings; an error ends the proof.

They are deleted however a proof ends, except by `kill -9`; if that fails, they are named.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import structlog

from duewheel.api.examination import DoctorFinding
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.doctor import examination
from duewheel.doctor.scratch import name_of
from duewheel.errors import ConfigError, DuewheelError
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.requirements import Requirement, TopicPlan
from duewheel.schemas.name_patterns import may_name_topic

log = structlog.get_logger(__name__)

TIMER_PARTITIONS = 2
TARGET_PARTITIONS = 4
_NEEDED = {"READ", "WRITE", "DESCRIBE_CONFIGS", "DELETE"}
_PREFIX_MAX = 200  # of the 249 characters of a name; a random part and a suffix follow
_CALL_S = 30.0
_CLEAN_UP_S = 15.0
_POLL_S = 0.2
_STAMPED = Requirement("message.timestamp.type", "LogAppendTime", "the broker's time of a delivery")


def require_prefix(prefix: str) -> None:
    """Refuses a prefix with which no topic can begin.

    Raises:
        ConfigError: naming it.
    """
    if not may_name_topic(prefix) or len(prefix) > _PREFIX_MAX:
        raise ConfigError(f"--prefix {prefix}: 1 to {_PREFIX_MAX} of a-z A-Z 0-9 . _ -")


class OwnTopics:
    """The topics of one proof. Not thread-safe."""

    def __init__(self, settings: Settings) -> None:
        """Creates nothing yet."""
        self._settings = settings
        self._options = settings.kafka.client_options("admin")
        self.left: list[str] = []  # in the end: the topics that could not be deleted

    @property
    def target(self) -> str:
        """The target of all timers."""
        return self._settings.timer.mapping[self._settings.timer.topics[0]]

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Steps 1 and 2, for the length of a with block.

        Raises:
            KafkaUnavailable: a broker does not answer.
            ConfigError: a right is missing, or Kafka refuses a topic.
        """
        try:
            with KafkaAdmin(self._options, _CALL_S) as admin:
                admin.ensure([TopicPlan(self.target, (_STAMPED,), TARGET_PARTITIONS)])
                self._require_rights(admin)
                admin.init_topics(self._settings, partitions=TIMER_PARTITIONS)
            yield
        finally:
            self._delete()
            for topic in self.left:
                log.error("a topic could not be deleted: delete it by hand", topic=topic)

    def examine(self, clock: Clock, begun: Callable[[str, int], None]) -> list[DoctorFinding]:
        """Step 3.

        Raises:
            ConfigError: an error was found; has its remedy.
        """
        found = list(examination.examine(self._settings, clock, begun))
        errors = [each for each in found if each.severity == "error"]
        if errors:
            lines = [f"  {each.subject}: {each.found}\n    {each.remedy}" for each in errors]
            raise ConfigError("\n".join(["nothing was started: `duewheel doctor` finds", *lines]))
        return found

    def _delete(self) -> None:
        """Deletes those that exist, and waits until they have vanished. Never raises."""
        settings, end_s = self._settings, time.monotonic() + _CLEAN_UP_S
        own = [*settings.timer.topics, *settings.service_topics.values()]
        names = [self.target, *own, name_of(settings)]  # the last one is of step 3
        self.left = names  # until the opposite is known
        with contextlib.suppress(DuewheelError), KafkaAdmin(self._options, _CLEAN_UP_S) as admin:
            while True:
                with contextlib.suppress(ConfigError):
                    admin.delete_topics(names)
                self.left = sorted(admin.partition_counts(names))
                if not self.left or time.monotonic() > end_s:
                    return
                time.sleep(_POLL_S)

    def _require_rights(self, admin: KafkaAdmin) -> None:
        granted = admin.existing([self.target])[self.target].rights
        lacking = sorted(_NEEDED - granted) if granted is not None else []
        if lacking:
            raise ConfigError(
                f"a proof needs {', '.join(lacking)} on topics that begin with "
                f"{self._settings.app.id.rpartition('-')[0]}, too: see docs/prove.md#rights"
            )
