"""duewheel delivers Kafka messages later: never early, exactly once, at a lateness it publishes."""

__version__ = "0.1.0"
