"""Targets: `catalog` caches the limits of their topics, and learns from refused batches.

`background_lookups` fetches what no transaction waits for; `unavailable_partitions` decides which
partitions take no writes for now.
"""
