"""Special ListOffsets timestamps stand for the earliest and the latest offset. This module is apart
from leader_requests.py: a process that plans batches starts without kafka-python.
"""

from __future__ import annotations

EARLIEST, LATEST = -2, -1
