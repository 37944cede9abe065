"""What producers import: a Kafka producer that can also say when, and its futures."""

from duewheel.client.async_producer import AsyncDelayProducer
from duewheel.client.futures import Cancel, Rescheduled, Timer
from duewheel.client.producer import SAME, DelayProducer
from duewheel.schemas.header_names import Answer

__all__ = [
    "SAME",
    "Answer",
    "AsyncDelayProducer",
    "Cancel",
    "DelayProducer",
    "Rescheduled",
    "Timer",
]
