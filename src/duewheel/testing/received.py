"""A message as a consumer gets it, with the parts of its headers that a test asserts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from duewheel.schemas.header_names import ANSWER, DUE_MS, ERROR, ERROR_CODE, SOURCE, TIMER_ID


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """One message in a topic.

    Attributes:
        topic, partition, offset: where a consumer finds it.
        key, value: None for null.
        headers: as a consumer gets them: the message's own, then those that a delivery adds.
        delivered_ms: when it was written, epoch ms.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    delivered_ms: int

    @classmethod
    def of(cls, record: Any) -> Self:
        """Makes it of a record of kafka-python."""
        return cls(
            *(record.topic, record.partition, record.offset, record.key, record.value),
            tuple(record.headers),
            record.timestamp,
        )

    def header(self, name: str) -> bytes | None:
        """Returns the value of a header, the last one with this name; None without one."""
        return dict(self.headers).get(name)

    @property
    def is_delivery(self) -> bool:
        """Whether the service has written it, as a timer or as its dead letter; not a reply."""
        return self.header(SOURCE) is not None and self.header(ANSWER) is None

    @property
    def id(self) -> str | None:
        """The id of its timer."""
        return self._text(TIMER_ID)

    @property
    def due_ms(self) -> int | None:
        """The due time of its timer, epoch ms."""
        due = self.header(DUE_MS)
        return None if due is None else int(due)

    @property
    def error_code(self) -> str | None:
        """Why it is a dead letter, in one word."""
        return self._text(ERROR_CODE)

    @property
    def error(self) -> str | None:
        """Why it is a dead letter, in a sentence."""
        return self._text(ERROR)

    def _text(self, name: str) -> str | None:
        value = self.header(name)
        return None if value is None else value.decode()
