"""Kafka's record format, version 2: records and batches as bytes."""
