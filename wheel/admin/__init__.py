"""An operator's changes of a shard: changed settings, skipped records, accepted losses."""
