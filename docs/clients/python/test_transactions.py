"""The bill, the retry of what has failed and the consumer's offset are one transaction.

In production `producer` is a `KafkaProducer(transactional_id="billing-1", …)`, and `consumer` a
`KafkaConsumer` of the group `billing`.
"""

import pytest

from duewheel.client import RetryLater


def make_handler(producer, consumer, charge):
    retry_later = RetryLater(producer, "timers", dead_letter_topic="payments.failed")

    @retry_later.in_transactions(consumer)
    def handle(record):
        producer.send("bills", record.value, record.key)
        charge(record.value)

    return handle


def start(duewheel, charge):
    producer = duewheel.transactional_producer("billing-1")
    producer.init_transactions()
    consumer = duewheel.consumer("payments", group="billing")
    consumer(make_handler(producer, consumer, charge))
    return consumer


def test_a_failed_attempt_leaves_no_bill(duewheel):
    attempts = []

    def charge(value):
        attempts.append(value)
        if len(attempts) < 3:
            raise ConnectionError("the bank does not answer")

    start(duewheel, charge)
    duewheel.producer().send("payments", b"10 EUR", key=b"42")
    duewheel.advance("1h")
    assert len(attempts) == 3
    assert [bill.value for bill in duewheel.records("bills")] == [b"10 EUR"]


def test_a_process_that_is_killed_leaves_no_bill_either(duewheel):
    def killed(value):
        raise KeyboardInterrupt  # no exception that a handler catches

    consumer = start(duewheel, killed)
    duewheel.producer().send("payments", b"10 EUR", key=b"42")
    with pytest.raises(KeyboardInterrupt):
        duewheel.advance("1s")
    consumer.close()
    assert duewheel.records("bills") == []
    start(duewheel, lambda value: None)  # the process is started again
    duewheel.advance("1s")
    assert [bill.value for bill in duewheel.records("bills")] == [b"10 EUR"]
