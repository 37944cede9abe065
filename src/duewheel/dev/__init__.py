"""A Kafka broker for development, and the demo."""
