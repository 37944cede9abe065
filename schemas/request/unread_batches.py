"""The dead letters of record batches that are not read: one for each batch, at its first offset.

It has neither key nor value, because the batch cannot be read. Its reason names the batch's
offsets, so that an operator can examine them in the topic. The codes of records that can be read,
and are rejected, are in timer_suite.json.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Int32, Int64
from duewheel.schemas.columns import Column, binary, constant, decimals, join, take
from duewheel.schemas.wire.defects import Defect
from duewheel.schemas.wire.kafka_records import Unread
from duewheel.schemas.wire.record_codec import framed, header_name

SKIPPED_CODE, UNREADABLE_CODE = "skipped_by_operator", "unreadable_batch"
CODES = (UNREADABLE_CODE, SKIPPED_CODE)
_REASONS: Mapping[Defect, str] = {
    Defect.SKIPPED: "the operator has skipped it: duewheel reconfigure --skip",
    Defect.CODEC: "its compression is unknown",
    Defect.COMPRESSION: "it cannot be decompressed",
    Defect.TOO_LARGE: "its records are too large together, decompressed",
    Defect.COUNT: "its number of records is wrong, or too large",
    Defect.LENGTHS: "a length in its records is wrong",
    Defect.OFFSETS: "its records' offsets do not rise",
    Defect.HEADERS: "its records have too many headers together",
}


def codes_of(unread: Unread) -> Int32:
    """The code of each batch: an index in CODES."""
    codes: Int32 = (unread.defect == Defect.SKIPPED).astype(np.int32)
    return codes


def error_headers(unread: Unread, offset: Int64) -> Column:
    """The two headers of each dead letter, encoded. `offset` is the first of each batch."""
    texts = binary(_REASONS.get(defect, "").encode() for defect in Defect)
    reason = join(
        *(constant(b"the record batch of offsets "), decimals(offset)),
        *(constant(b" to "), decimals(unread.last_offset)),
        *(constant(b" is not read: "), take(texts, unread.defect)),
    )
    codes = take(binary(code.encode() for code in CODES), codes_of(unread))
    return join(
        *(header_name(names.ERROR_CODE), *framed(codes)),
        *(header_name(names.ERROR), *framed(reason)),
    )
