"""A failed message comes again, later each time. In the end it is a dead letter."""

from duewheel.client import RetryLater, RetryPolicy


def make_handler(producer, charge):
    retry_later = RetryLater(
        producer,
        producer.timer_topic,
        dead_letter_topic="payments.failed",
        policy=RetryPolicy(attempts=5, first="10s", longest="1h"),
    )

    @retry_later
    def handle(record):
        charge(record.value)

    return handle


def test_the_third_attempt_succeeds(duewheel):
    producer, attempts = duewheel.producer(), []

    def charge(value):
        attempts.append(duewheel.now())
        if len(attempts) < 3:
            raise ConnectionError("the bank does not answer")

    duewheel.consumer("payments")(make_handler(producer, charge))
    producer.send("payments", b"10 EUR", key=b"42")
    duewheel.advance("1h")
    assert len(attempts) == 3
    first, second, third = attempts
    assert (second - first).total_seconds() <= 10.1  # the wait is random up to `first`,
    assert (third - second).total_seconds() <= 20.1  # then up to twice as long
    assert duewheel.records("payments.failed") == []


def test_the_fifth_failure_is_a_dead_letter(duewheel):
    producer = duewheel.producer()

    def charge(value):
        raise ConnectionError("the bank does not answer")

    duewheel.consumer("payments")(make_handler(producer, charge))
    producer.send("payments", b"10 EUR", key=b"42")
    duewheel.advance("1d")
    [letter] = duewheel.records("payments.failed")
    assert letter.value == b"10 EUR"
    assert (letter.header("RETRY_ATTEMPT"), letter.header("RETRY_REASON")) == (b"5", b"attempts")
