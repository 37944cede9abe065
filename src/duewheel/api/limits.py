"""Bounds of requests: of lists, of bulk changes, and of texts in characters; of tags in bytes."""

from __future__ import annotations

from duewheel.errors import InvalidTimer
from duewheel.schemas.header_names import TAG_BYTES_MAX

PAGE_MAX = 1_000
BULK_MAX = 10_000
# A command is run by an operator on the host, and shows its progress: it may change more at once.
COMMAND_BULK_MAX, COMMAND_BULK_DEFAULT = 100_000, 1_000
BUCKETS_MAX = 400
KEY_MAX = 4_096
ID_MAX = 255
TOPIC_MAX = 249


def tag_octets(tag: str) -> bytes:
    """The bytes of a tag.

    Raises:
        InvalidTimer: it is none.
    """
    try:
        octets = tag.encode()
    except UnicodeEncodeError:
        octets = b""
    if not 0 < len(octets) <= TAG_BYTES_MAX:
        raise InvalidTimer(f"a tag has 1 to {TAG_BYTES_MAX} bytes of UTF-8")
    return octets
