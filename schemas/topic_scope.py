"""Timer topics that a token of the HTTP API is for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from duewheel.schemas.name_patterns import of_shell
from duewheel.schemas.partition_names import record_if_named


@cache  # the patterns are those of tokens
def _regex_of(patterns: tuple[str, ...]) -> str:
    return of_shell(patterns)


@dataclass(frozen=True, slots=True)
class TopicScope:
    """The timer topics that one of these shell-style patterns matches; without any, all of them."""

    patterns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _regex_of(self.patterns)  # ConfigError: one has characters that no topic's name has

    def __contains__(self, topic: str) -> bool:
        # As a whole: `$` also matches before a final line feed.
        return not self.patterns or re.fullmatch(_regex_of(self.patterns), topic) is not None

    def has_record(self, name: str) -> bool:
        """Whether the topic of a record's name, topic-partition@offset, is one of them."""
        if not self.patterns:
            return True
        record = record_if_named(name)
        return record is not None and record[0][0] in self


ALL_TOPICS = TopicScope()
NO_TOPICS = TopicScope((".",))  # Kafka forbids this name
