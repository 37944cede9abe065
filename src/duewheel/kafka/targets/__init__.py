"""Targets: `catalog` caches the limits of their topics, and learns from refused batches.

`background_lookups` fetches the others beside transactions; `unavailable_partitions` decides which
of their partitions take no writes for now, `costly_targets` which topics make appends slow.
`ttl_cache` is the cache itself.
"""
