"""Dead letters: their format, and their conversion to a message in a replay.

Key and value are the message's own. The headers are, in this order:

    the message's headers       rejected at ingest: all, request headers too; else the user's
    TIMER_ERROR_CODE            one word, for programs
    TIMER_ERROR                 a sentence, for people
    REAL_TOPIC, [REAL_QID]      ┐ only of a failed delivery: its target and the headers
    TIMER_DUE_MS, UNIQ_KEY      │ that it would have had; of a reply REAL_TOPIC only:
    [TIMER_ROLL_TIMES]          ┘ the rest is among its own
    TIMER_SOURCE                topic-partition@offset of the timer

A rejected message may have headers of these names itself. The last TIMER_ERROR_CODE counts, and
duewheel has added all that follows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Int32
from duewheel.schemas.batches import NO_PARTITION, Deliveries
from duewheel.schemas.columns import EMPTY, Column, binary, choose, decimals, join, take
from duewheel.schemas.header_names import NAME_OF, Request
from duewheel.schemas.name_patterns import TimerTopics, may_name_topic
from duewheel.schemas.partition_names import PARTITIONS_MAX, record_if_named
from duewheel.schemas.request.parser import Contract
from duewheel.schemas.request.preview import Rejection
from duewheel.schemas.request.unread_batches import UNREADABLE_CODE
from duewheel.schemas.wire.record_codec import framed, header_name
from duewheel.schemas.wire.single_record import Header

_TOPIC = NAME_OF[Request.TARGET_TOPIC]
_PARTITION = NAME_OF[Request.TARGET_PARTITION]
_DELIVERED = (names.DUE_MS, names.TIMER_ID, names.ROLL_TIMES)  # beside TIMER_SOURCE
_NUMBER = re.compile(r"[0-9]{1,10}")
_DUE = re.compile(r"-?[0-9]{1,18}")
# Never replayed. A new record has another offset, and could fulfil the rule by accident; a batch
# that was not read has no content to write again.
_NEVER_AGAIN = {
    "bad_origin": "TIMER_ORIGIN is for duewheel's own use",
    UNREADABLE_CODE: "its records could not be read, and are only at the source",
}


def kept_headers(deliveries: Deliveries) -> tuple[Column, Int32]:
    """The headers from REAL_TOPIC to TIMER_ROLL_TIMES of failed deliveries, encoded, and their
    number in each row.
    """
    topics = take(binary(topic.encode() for topic in deliveries.targets), deliveries.target)
    has_partition = deliveries.target_partition != NO_PARTITION
    partition = join(header_name(_PARTITION), *framed(decimals(deliveries.target_partition)))
    rolled = deliveries.roll_times > 0
    times = join(header_name(names.ROLL_TIMES), *framed(decimals(deliveries.roll_times)))
    carried = join(
        *(header_name(names.DUE_MS), *framed(decimals(deliveries.due_ms))),
        *(header_name(names.TIMER_ID), *framed(deliveries.timer_id)),
        choose(rolled, times, EMPTY),
    )
    encoded = join(
        *(header_name(_TOPIC), *framed(topics)),
        choose(has_partition, partition, EMPTY),
        choose(deliveries.answer, EMPTY, carried),
    )
    count = np.where(deliveries.answer, 0, 2 + rolled)
    return encoded, (1 + has_partition + count).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The message of a dead letter, ready to be written again."""

    topic: str
    partition: int  # the requested one, or NO_PARTITION
    partition_needed: bool  # without it the message cannot be written; else it is only preferred
    headers: tuple[Header, ...]  # all of them

    @property
    def is_request(self) -> bool:
        """Whether it goes to a timer topic, where ingest checks it."""
        return not self.partition_needed


def why_no_target(contract: Contract, timer_topic: str | None, topic: str) -> Rejection | None:
    """The rule that rejects every timer of a timer topic with this target; None if no rule does.
    Without a timer topic the lists of open targets do not count.
    """
    rule = contract.refused_targets(timer_topic, [topic]).get(topic)
    return None if rule is None else Rejection(rule.code, f"topic {topic!r}: {rule.reason}")


@dataclass(frozen=True)
class DeadLetter:
    """One record of the dead-letter topic. Key and value may be None."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]

    @cached_property
    def _cut(self) -> int:
        """The number of headers before the error."""
        codes = [i for i, (name, _) in enumerate(self.headers) if name == names.ERROR_CODE]
        return codes[-1] if codes else len(self.headers)

    @cached_property
    def _added(self) -> dict[str, str]:
        return {
            name: (value or b"").decode(errors="replace")
            for name, value in self.headers[self._cut :]
        }

    @property
    def message_headers(self) -> tuple[Header, ...]:
        """The message's own headers."""
        return tuple(self.headers[: self._cut])

    @property
    def code(self) -> str:
        """TIMER_ERROR_CODE; empty if another program has written this record."""
        return self._added.get(names.ERROR_CODE, "")

    @property
    def error(self) -> str:
        return self._added.get(names.ERROR, "")

    @property
    def source(self) -> str:
        """TIMER_SOURCE: "topic-partition@offset" of the timer."""
        return self._added.get(names.SOURCE, "")

    @property
    def timer_topic(self) -> str | None:
        """That of `source`; None if another program has written this record."""
        record = record_if_named(self.source)
        return None if record is None else record[0][0]

    @property
    def due_ms(self) -> int | None:
        """TIMER_DUE_MS of a failed delivery; None for other letters."""
        due_ms = self._added.get(names.DUE_MS, "") if _TOPIC in self._added else ""
        return int(due_ms) if _DUE.fullmatch(due_ms) else None

    @property
    def timer_id(self) -> bytes | None:
        """UNIQ_KEY, of a rejected message its own; None without one."""
        return dict(self.headers).get(names.TIMER_ID)

    def again(self, refusal: Rejection) -> tuple[Header, ...]:
        """Returns the headers of this dead letter with the present reason."""
        rest = [
            header
            for header in self.headers[self._cut :]
            if header[0] not in (names.ERROR_CODE, names.ERROR)
        ]
        reason = [
            (names.ERROR_CODE, refusal.code.encode()),
            (names.ERROR, refusal.reason.encode()),
        ]
        return (*self.message_headers, *reason, *rest)

    def replayed(
        self,
        timer_topics: TimerTopics,
        why_no_target: Callable[[str | None, str], Rejection | None],
        to_topic: str | None,
        reply_topic: str | None,
    ) -> Outgoing | Rejection:
        """The message, ready to be written again.

        A message rejected at ingest goes to its timer topic, preferably to the same partition, and
        ingest validates it again. A failed delivery goes to its target. `to_topic` overrides both:
        as the operator's choice it may be any topic but duewheel's own and internal ones. The reply
        topic is no target of timers, but takes replies. `why_no_target` returns the rule that
        forbids a target to the timers of a timer topic.
        """
        record = record_if_named(self.source)
        if record is None or not self.code:
            return Rejection("not_a_dead_letter", "TIMER_ERROR_CODE or TIMER_SOURCE is missing")
        timer_topic, timer_partition = record[0]
        if (lost := self._why_never()) is not None:
            return Rejection(self.code, lost)
        topic = to_topic or self._added.get(_TOPIC)
        if topic is None:
            return self._to_timer_topic(timer_topic, timer_partition, timer_topics)
        number = None if to_topic else self._added.get(_PARTITION)
        is_number = _NUMBER.fullmatch(number or "0") and int(number or "0") < PARTITIONS_MAX
        if not may_name_topic(topic) or not is_number:
            return Rejection("not_a_dead_letter", f"{_TOPIC} or {_PARTITION} is malformed")
        # In a rejected message the header is the producer's, who may write no replies.
        is_answer = _TOPIC in self._added and names.ANSWER in dict(self.message_headers)
        rules_of = None if to_topic else timer_topic
        refusal = None if is_answer and topic == reply_topic else why_no_target(rules_of, topic)
        if refusal is not None:
            return refusal
        partition = int(number) if number else NO_PARTITION
        return Outgoing(topic, partition, partition_needed=True, headers=self._delivered())

    def _to_timer_topic(
        self, topic: str, partition: int, timer_topics: TimerTopics
    ) -> Outgoing | Rejection:
        if topic not in timer_topics:
            return Rejection("not_a_timer_topic", f"ingest does not read topic {topic!r}")
        return Outgoing(topic, partition, partition_needed=False, headers=self.message_headers)

    def _delivered(self) -> tuple[Header, ...]:
        """The headers of the failed delivery; of a rejected message, its own and TIMER_SOURCE."""
        source, added = (names.SOURCE, self.source.encode()), dict(self.headers[self._cut :])
        if _TOPIC not in added:  # all headers are the producer's, forged ones included
            own = (header for header in self.message_headers if header[0] not in names.SERVICE)
            return (*own, source)
        kept = [(name, added[name]) for name in _DELIVERED if name in added]  # an id is any bytes
        # Not the lateness of the failed attempt: ingest removes a message's own.
        own = (header for header in self.message_headers if header[0] != names.LATENESS_MS)
        return (*own, source, *kept)

    def _why_never(self) -> str | None:
        """The reason why this letter is never replayed, whatever the settings."""
        if _TOPIC in self._added:
            return None
        # Only a pointer: the content exceeded the dead-letter topic, too.
        nothing = self.key is None and self.value is None and self._cut == 0
        if nothing and self.code == "record_too_large":
            return "its content was too large and is only at the source"
        return _NEVER_AGAIN.get(self.code)
