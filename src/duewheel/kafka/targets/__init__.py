"""Targets: the topics that deliveries and commands write to, with their limits.

catalog                  the targets of deliveries, for the publisher
target_cache             targets as they are cached, for the catalog and for commands
target_describer         asks Kafka for topics, rights and settings
background_lookups       asks it beside transactions, for names that none waits for
ttl_cache                a cache whose entries expire

refusal_limits           limits that only refused batches show
slow_targets             which targets make appends slow, by their settings
unavailable_partitions   which partitions take no writes for now
resting_timer_topics     which timer topics rest, because they have held up others
throttles                bound the time that lookups, slow appends and refusals take
"""
