"""All that knows Kafka's client: connections, topics, metadata, transactions."""
