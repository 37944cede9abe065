"""Targets: `target_describer` asks Kafka for the limits of their topics, `refusal_limits` keeps
those that refused batches have shown; `target_cache` caches both.

`catalog` has those of deliveries: `background_lookups` fetches the others beside transactions;
`unavailable_partitions` decides which of their partitions take no writes for now, `slow_targets`
which topics make appends slow, `resting_timer_topics` which timer topics rest after a refusal.
`throttles` bounds the time that lookups, slow appends and refusals take, `ttl_cache` is the cache
itself.
"""
