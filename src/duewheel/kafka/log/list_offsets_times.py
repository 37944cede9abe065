"""Special ListOffsets timestamps: earliest and latest offset. Apart from leader_requests.py: a
process that plans batches starts without kafka-python.
"""

from __future__ import annotations

EARLIEST, LATEST = -2, -1
