"""Bounds of requests: of lists, of bulk changes, and of texts in characters."""

from __future__ import annotations

PAGE_MAX = 1_000
BULK_MAX = 10_000
BUCKETS_MAX = 400
KEY_MAX = 4_096
ID_MAX = 255
TOPIC_MAX = 249
