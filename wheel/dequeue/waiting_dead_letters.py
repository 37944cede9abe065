"""Whether dead letters wait in their timer topics, because the dead-letter topic takes none."""

from __future__ import annotations

import structlog

from duewheel.wheel.target_rules import Target

log = structlog.get_logger(__name__)


class WaitingDeadLetters:
    """Logs each change once. Not thread-safe.

    Attributes:
        wait: whether the topic took no writes when it was last needed.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.wait = False

    def note(self, letters: Target | None) -> None:
        """Notes the dead-letter topic as a transaction needs it; None: it does not."""
        if letters is None or letters.takes_letters != self.wait:
            return
        self.wait = not letters.takes_letters
        if not self.wait:
            log.info("the dead-letter topic takes dead letters again", topic=self._topic)
            return
        reason = "it is compacted" if letters.key_required else "no partition takes writes"
        log.error(
            "the dead-letter topic takes nothing: dead letters wait in their timer topics",
            topic=self._topic,
            reason=letters.refusal.code if letters.refusal else reason,
            remedy="`duewheel doctor` shows its required settings, `duewheel init` creates it",
        )
