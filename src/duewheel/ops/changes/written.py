"""Changes that are written, and whose replies may be still to come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from duewheel.api.model import Result
from duewheel.client import Answer, Cancel, Rescheduled
from duewheel.client.futures import AcknowledgedRecord
from duewheel.errors import DuewheelError
from duewheel.ops.changes.producer_pool import ACKNOWLEDGED_S

log = structlog.get_logger(__name__)

R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class WrittenChange(Generic[R]):
    """A change whose records Kafka has acknowledged.

    Attributes:
        replies: those that are awaited. They come only while this object lives.
        result: makes the result with the replies that have come so far.
    """

    replies: Sequence[Future[Answer]]
    result: Callable[[], R]

    def after(self, wait_s: float, waits_on: Callable[[], bool] = lambda: False) -> R:
        """Waits for all replies, and returns the result.

        Args:
            wait_s: the longest wait.
            waits_on: called at the end of a wait: whether to wait for as long once more.
        """
        while wait(self.replies, wait_s).not_done and waits_on():
            pass
        return self.result()


def acknowledged(
    kind: type[R], request: Future[Cancel] | Future[Rescheduled], **others: object
) -> WrittenChange[R]:
    """Waits for the acknowledgement of a request; `others` are fields of its result.

    The `answer` of the result is None if there is none in time, or it cannot be read. The request
    is written then, and is no failure: another one would act twice.
    """
    written = request.result(ACKNOWLEDGED_S)
    reply = written.reply
    return WrittenChange(
        [] if reply is None else [reply],
        lambda: result_of(
            kind, written, answer=None if reply is None else _answer(reply), **others
        ),
    )


def _answer(reply: Future[Answer]) -> Answer | None:
    answer = answer_so_far(reply)
    if answer is None and reply.done():
        log.warning("a reply cannot be read", reason=str(reply.exception()))
    return answer


def answer_so_far(reply: Future[Answer]) -> Answer | None:
    """A reply; None if it is still to come, or cannot be read."""
    if not reply.done() or isinstance(reply.exception(), DuewheelError):
        return None
    return reply.result()


def result_of(kind: type[R], written: AcknowledgedRecord, **others: object) -> R:
    """Makes a result of the attributes of a written record, and of other fields."""
    fields = {name: getattr(written, name) for name in kind.model_fields if name not in others}
    return kind(**fields, **others)
