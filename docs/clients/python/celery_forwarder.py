"""Gives due tasks to Celery's broker, and tries again later if that is down."""

import os
from functools import cache

from celery import Celery
from celery.exceptions import SecurityError
from kafka import KafkaConsumer

from duewheel.adapters.celery import DelayedTask, Delays
from duewheel.client import DelayProducer, RetryLater, RetryPolicy

options = {"bootstrap_servers": "localhost:9092"}


@cache  # one for each process, made after its fork
def producer():
    return DelayProducer("orders.delayed", **options)


app = Celery("shop", broker="amqp://rabbit", task_cls=DelayedTask)  # in shop/tasks.py
secret = os.environ.get("SHOP_DELAYS_KEY", "32 random bytes, as text").encode()
delays = Delays(app, producer, target="orders", keys=[secret])

# For three days: the attempts are more than fit into them.
policy = RetryPolicy(attempts=1_000, first="10s", longest="1h", deadline="3d")
retry_later = RetryLater(
    producer(), "orders.delayed", dead_letter_topic="orders.failed", policy=policy
)


@retry_later
def forward(record):
    try:
        delays.forward(record)
    except SecurityError as error:  # a stranger's: it has no further attempt
        retry_later.dead_letter(record, error)


consumer = KafkaConsumer(
    "orders",
    group_id="celery",
    enable_auto_commit=False,
    auto_offset_reset="earliest",
    isolation_level="read_committed",
    **options,
)
for record in consumer:
    forward(record)
    consumer.commit()
