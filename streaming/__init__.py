"""Spark: the streaming query that brings Kafka records to the engine."""
