"""The timer wheel of one shard, independent of Spark and of Kafka's client."""
