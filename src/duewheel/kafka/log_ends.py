"""The times by which brokers are asked for a log's ends: of a ListOffsets request."""

from __future__ import annotations

EARLIEST, LATEST = -2, -1
