"""Patterns over topic names: which are timer topics, which may be targets.

Each becomes a regular expression with the same meaning in Python's, Arrow's and Java's engines. The
same pattern selects topics in Kafka, checks targets in the suite's rules, and runs in Great
Expectations. A regular expression matches anywhere in a name unless it is anchored; `whole` anchors
it.

    shell style   *  any characters    ?  one    [a-c]  one of these    [!a-c]  one of the others
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from duewheel.errors import ConfigError

NONE = ".^"
"""Matches no name."""

TOPIC_NAME = r"^(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}$"
"""Names that Kafka allows a topic."""

_UNPORTABLE = re.compile(r"\$|\\[0-9A-Za-z]|\(\?(?!:)|\[\[|\[:|[*+?}]\+|--|&&|~~|\|\|")
_PART = re.compile(r"\*|\?|\[(!?)([a-zA-Z0-9._-]+)\]|[a-zA-Z0-9._-]")


def may_name_topic(name: str) -> bool:
    """Whether Kafka allows a topic of that name."""
    return re.fullmatch(TOPIC_NAME, name) is not None


def require_topic_name(name: str) -> None:
    """Refuses a name that no topic can have.

    Raises:
        ConfigError: with the rule.
    """
    if not may_name_topic(name):
        raise ConfigError(f"{name!r} is no topic name: 1 to 249 of a-z A-Z 0-9 . _ -")


def require_portable(regex: str) -> None:
    """Refuses syntax whose meaning differs between engines. A final `$` is fine, see `for_arrow`.

    Raises:
        ConfigError: naming the part.
    """
    match = _UNPORTABLE.search(regex.removesuffix("$"))
    if match or regex.endswith("\\$"):
        part = match[0] if match else "\\$"
        raise ConfigError(f"{part!r} in {regex!r} does not mean the same everywhere")
    try:
        re.compile(regex)
    except re.error as error:
        raise ConfigError(f"{regex!r} is no regular expression: {error}") from error


def for_arrow(regex: str) -> str:
    """The same for Arrow's engine, where `$` does not match before a final line feed as Python's
    does.
    """
    return f"{regex.removesuffix('$')}\\n?\\z" if regex.endswith("$") else regex


def whole(regex: str) -> str:
    """The regular expression for names that match as a whole, whether it ends in `$` or not."""
    return f"^(?:{regex.removesuffix('$')})$"


def of_shell(patterns: Iterable[str]) -> str:
    """One regular expression for all names that one of the shell-style patterns matches.

    Raises:
        ConfigError: a pattern has characters that no topic's name has.
    """
    alternatives = ["".join(_regex_parts(pattern)) for pattern in patterns]
    regex = whole("|".join(alternatives)) if alternatives else NONE
    require_portable(regex)
    return regex


def _regex_parts(pattern: str) -> Iterator[str]:
    at = 0
    while at < len(pattern) or not pattern:
        match = _PART.match(pattern, at)
        if match is None:
            raise ConfigError(
                f"{pattern!r} is neither a topic's name nor a pattern of one: it may have letters, "
                "digits, '.', '_', '-', and *, ?, [a-c], [!a-c]"
            )
        text, at = match[0], match.end()
        if text == "*":
            yield ".*"
        elif text == "?":
            yield "."
        elif text in {".", "-"}:  # two hyphens in a row are not portable
            yield f"[{text}]"
        elif match[2]:
            yield f"[{'^' if match[1] else ''}{match[2]}]"
        else:
            yield text


@dataclass(frozen=True)
class TimerTopics:
    """The names of timer topics, whether such topics exist or not."""

    listed: tuple[str, ...]  # the names in the settings
    # Further ones: a regular expression that matches the whole name; None: no others
    pattern: str | None = None
    # Excluded from the pattern: duewheel's own topics
    never: frozenset[str] = field(default_factory=frozenset)

    def __contains__(self, name: str) -> bool:
        return name in self.listed or self.matches(name)

    def matches(self, name: str) -> bool:
        """Whether the pattern matches a topic. It never matches internal ones."""
        if self.pattern is None or name in self.never or name.startswith("__"):
            return False
        return re.search(whole(self.pattern), name) is not None

    @property
    def regex(self) -> str:
        """The pattern, as rules need it."""
        return NONE if self.pattern is None else whole(self.pattern)
