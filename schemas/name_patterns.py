"""Patterns over topic names: which are timer topics, which may be targets.

All of them become regular expressions that Python's, Arrow's and Java's engines read alike: the
same pattern finds topics in Kafka, judges targets in the suite's rules, and may be run by Great
Expectations. A regular expression is searched for anywhere in a name unless it is anchored; `whole`
anchors it.

    shell style   *  any characters    ?  one    [a-c]  one of these    [!a-c]  one of the others
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from duewheel.errors import ConfigError

ANY = "^"
"""Found in every name."""
NONE = ".^"
"""Found in no name."""

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_UNPORTABLE = re.compile(r"\$|\\[0-9A-Za-z]|\(\?(?!:)|\[\[|\[:|[*+?}]\+|--|&&|~~|\|\|")
_PIECE = re.compile(r"\*|\?|\[(!?)([a-zA-Z0-9._-]+)\]|[a-zA-Z0-9._-]")


def may_name_topic(name: str) -> bool:
    """Whether Kafka allows a topic of that name."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}


def require_portable(regex: str) -> None:
    """Refuse what does not mean the same everywhere. A `$` may stand at the end, see `for_arrow`.

    Raises:
        ConfigError: naming the part.
    """
    found = _UNPORTABLE.search(regex.removesuffix("$"))
    if found or regex.endswith("\\$"):
        part = found[0] if found else "\\$"
        raise ConfigError(f"{part!r} in {regex!r} does not mean the same everywhere")
    try:
        re.compile(regex)
    except re.error as error:
        raise ConfigError(f"{regex!r} is no regular expression: {error}") from error


def for_arrow(regex: str) -> str:
    """The same for Arrow's engine. Python's `$` also matches before a final line feed."""
    return f"{regex.removesuffix('$')}\\n?\\z" if regex.endswith("$") else regex


def whole(regex: str) -> str:
    """The regular expression for names that match as a whole, whether it ends in `$` or not."""
    return f"^(?:{regex.removesuffix('$')})$"


def of_shell(patterns: Iterable[str]) -> str:
    """One regular expression for all names that one of the shell-style patterns matches.

    Raises:
        ConfigError: a pattern has characters that no topic's name has.
    """
    alternatives = ["".join(_pieces(pattern)) for pattern in patterns]
    regex = whole("|".join(alternatives)) if alternatives else NONE
    require_portable(regex)
    return regex


def _pieces(pattern: str) -> Iterator[str]:
    at = 0
    while at < len(pattern) or not pattern:
        found = _PIECE.match(pattern, at)
        if found is None:
            raise ConfigError(
                f"{pattern!r} is neither a topic's name nor a pattern of one: it may have letters, "
                "digits, '.', '_', '-', and *, ?, [a-c], [!a-c]"
            )
        text, at = found[0], found.end()
        if text == "*":
            yield ".*"
        elif text == "?":
            yield "."
        elif text in {".", "-"}:  # two hyphens in a row are not portable
            yield f"[{text}]"
        elif found[2]:
            yield f"[{'^' if found[1] else ''}{found[2]}]"
        else:
            yield text


@dataclass(frozen=True)
class TimerTopics:
    """Which names are timer topics', whether there are such topics or not.

    Attributes:
        listed: those that are named.
        pattern: of further ones: a regular expression that matches the whole name; None: no others.
        never: what the pattern does not speak of: duewheel's own topics.
    """

    listed: tuple[str, ...]
    pattern: str | None = None
    never: frozenset[str] = field(default_factory=frozenset)

    def __contains__(self, name: str) -> bool:
        return name in self.listed or self.matches(name)

    def matches(self, name: str) -> bool:
        """Whether the pattern speaks of a topic. It never does of internal ones."""
        if self.pattern is None or name in self.never or name.startswith("__"):
            return False
        return re.search(whole(self.pattern), name) is not None

    @property
    def regex(self) -> str:
        """Of the pattern, for rules."""
        return NONE if self.pattern is None else whole(self.pattern)
