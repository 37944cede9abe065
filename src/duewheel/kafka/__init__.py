"""Everything that uses Kafka's client: connections, topics, metadata, transactions."""
