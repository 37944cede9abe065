"""Why a record batch is not read. Separate from kafka_records.py, because the client reads batches
without numpy.
"""

from __future__ import annotations

from enum import IntEnum


class Defect(IntEnum):
    """Why a record batch is not read."""

    NONE = 0
    SKIPPED = 1
    CODEC = 2
    COMPRESSION = 3
    TOO_LARGE = 4
    COUNT = 5
    LENGTHS = 6
    OFFSETS = 7
    HEADERS = 8
