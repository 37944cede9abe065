"""Targets: `described_targets` caches the limits of their topics, which `describe_targets` asks
Kafka for and `refusal_limits` keeps from refused batches.

`catalog` has those of deliveries: `background_lookups` fetches the others beside transactions;
`unavailable_partitions` decides which of their partitions take no writes for now, `new_partitions`
which have no log yet, `costly_targets` which topics make appends slow, `resting_timer_topics` which
timer topics rest after a refusal. `work_rests` bounds the time that lookups, slow appends and
refusals take, `ttl_cache` is the cache itself.
"""
