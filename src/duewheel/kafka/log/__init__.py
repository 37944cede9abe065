"""The one reader of Kafka: ends, ranges as columns or as records, following."""
