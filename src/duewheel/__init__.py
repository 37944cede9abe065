"""duewheel delivers Kafka messages later: never early, exactly once, at a lateness it publishes.

Four packages are links to folders at the root: wheel, streaming, schemas and checkpoints.
"""

__version__ = "0.1.0"
