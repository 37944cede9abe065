"""Keeps limits of targets that metadata does not show, but refused batches do.

A refused batch of several records is encoded again at half the size, until the bad record is alone
in its batch. Its size then bounds the records of its topic, if it is too large; for any other
reason its source is noted. Either makes it a dead letter.
"""

from __future__ import annotations

from duewheel.kafka.targets.ttl_cache import TtlCache
from duewheel.kafka.transaction_errors import TOO_LARGE
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.wheel.encoded import Part

_AGE_S = 30.0  # for which limits in bytes are kept


class RefusalLimits:
    """The limits that are known. One thread changes them; any thread may read one.

    Attributes:
        refused: the sources of the refused records; replaced as a whole.
    """

    def __init__(self) -> None:
        self._batch_bytes: TtlCache[str, int] = TtlCache()
        self._record_bytes: TtlCache[str, int] = TtlCache()
        self.refused: frozenset[bytes] = frozenset()

    def batch_bytes(self, topic: str) -> int | None:
        """The size of the topic's next batches; None without a refusal."""
        return self._batch_bytes.get(topic)

    def record_bytes(self, topic: str) -> int | None:
        """The largest batch of one record that the topic may take; None without a refusal. Cached
        targets contain it.
        """
        return self._record_bytes.get(topic)

    def note_refusal(self, sent: Part, error: Exception) -> None:
        """Notes a limit, by a batch whose content was refused; it can be divided."""
        size = HEADER_BYTES + len(sent.batch.body)
        if sent.source is None:
            self._batch_bytes.put(sent.topic, size // 2, _AGE_S)
        elif isinstance(error, TOO_LARGE):
            self._record_bytes.put(sent.topic, size - 1, _AGE_S)
        else:
            self.refused |= {sent.source}

    def note_success(self, deliveries: Deliveries) -> None:
        """These rows are published, as dead letters if they were refused."""
        if self.refused:
            self.refused = self.refused.difference(deliveries.source.to_pylist())
