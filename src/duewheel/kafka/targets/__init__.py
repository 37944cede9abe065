"""Targets: `catalog` caches what is known of their topics, and learns from refused batches.

`unavailable_partitions` decides which of their partitions take no writes for now.
"""
