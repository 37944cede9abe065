"""The timer wheel of one shard: neither Spark nor Kafka's client is known here."""
