"""What producers import: a Kafka producer that can also say when, its futures, and retries."""

from duewheel.client.async_producer import AsyncDelayProducer
from duewheel.client.futures import Cancel, Rescheduled, Timer
from duewheel.client.producer import SAME, DelayProducer
from duewheel.client.retry_later import Retry, RetryEnd, RetryLater
from duewheel.client.retry_policy import RetryPolicy
from duewheel.client.transactions import transaction
from duewheel.schemas.header_names import Answer

__all__ = [
    "SAME",
    "Answer",
    "AsyncDelayProducer",
    "Cancel",
    "DelayProducer",
    "Rescheduled",
    "Retry",
    "RetryEnd",
    "RetryLater",
    "RetryPolicy",
    "Timer",
    "transaction",
]
