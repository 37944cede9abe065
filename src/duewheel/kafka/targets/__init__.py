"""Targets: `catalog` caches the limits of their topics, and learns from refused batches.

`unavailable_partitions` decides which of their partitions take no writes for now.
"""
