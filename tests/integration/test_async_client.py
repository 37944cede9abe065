"""`AsyncDelayProducer` whose tasks are cancelled, or which is closed, while calls wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from kafka.errors import IllegalStateError
from tests.harness.fault_proxy import ALWAYS, Action, Fault, FaultProxy
from tests.harness.launcher import wait_until
from tests.harness.shared_broker import SharedBroker

from duewheel.client import AsyncDelayProducer
from duewheel.errors import ConfigError, DuewheelError
from duewheel.kafka.topics.admin import KafkaAdmin

pytestmark = pytest.mark.kafka

ANSWER_S = 30.0
HELD = Fault("ListOffsets", Action.HOLD, seconds=30, times=ALWAYS)


class CountingExecutor(ThreadPoolExecutor):
    """The executor of a loop that counts what it is given."""

    def __init__(self) -> None:
        super().__init__(4)
        self.count = 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.count += 1
        return super().submit(*args, **kwargs)


@pytest.fixture
def topic(broker: SharedBroker, unique_name: Callable[[str], str]) -> str:
    """A timer topic, and one of replies."""
    name = unique_name("timers")
    with KafkaAdmin({"bootstrap_servers": [broker.bootstrap_servers]}) as admin:
        admin.create_topic(name, 1)
        admin.create_topic(f"{name}.replies", 1)
    return name


async def cancelled_again_and_again(make: Callable[[], Any]) -> None:
    """Begins five tasks, each after the one before was cancelled."""
    for _ in range(5):
        task = asyncio.create_task(make())
        for _ in range(5):
            await asyncio.sleep(0)  # it begins, and waits
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_cancelled_sends_to_a_missing_topic_hold_one_thread(
    broker: SharedBroker, topic: str
) -> None:
    async def run() -> None:
        executor = CountingExecutor()
        asyncio.get_running_loop().set_default_executor(executor)
        async with AsyncDelayProducer(
            topic, bootstrap_servers=broker.bootstrap_servers, max_block_ms=5_000
        ) as producer:
            await cancelled_again_and_again(lambda: producer.send(f"{topic}.missing", b""))
            assert executor.count == 1
            await producer.send(f"{topic}.replies", b"")
            assert executor.count == 2

    asyncio.run(run())


def test_cancelled_cancels_hold_no_thread_and_let_the_reader_go(
    topic: str, proxy: FaultProxy
) -> None:
    async def run() -> None:
        executor = CountingExecutor()
        asyncio.get_running_loop().set_default_executor(executor)
        async with AsyncDelayProducer(
            topic, reply_topic=f"{topic}.replies", bootstrap_servers=proxy.bootstrap_servers
        ) as producer:
            proxy.inject(HELD)
            await cancelled_again_and_again(lambda: producer.cancel("7", key=b"k"))
            assert executor.count == 0
            proxy.clear()
            await producer.cancel("7", key=b"k")
            await cancelled_again_and_again(lambda: producer.cancel("7", key=b"k"))
            replies = producer._opened().replies  # noqa: SLF001 - no one else sees what is open
            assert replies is not None
            await asyncio.to_thread(
                wait_until,
                lambda: not replies._unwritten,  # noqa: SLF001
                "the reader stays",
                ANSWER_S,
            )

    asyncio.run(run())


def test_cancels_that_wait_for_one_reader_share_its_failure(topic: str, proxy: FaultProxy) -> None:
    """Else a hundred of them would try to connect in turn, each for half a minute."""

    async def run() -> None:
        async with AsyncDelayProducer(
            topic, reply_topic=f"{topic}.missing", bootstrap_servers=proxy.bootstrap_servers
        ) as producer:
            proxy.inject(Fault("Metadata", Action.HOLD, seconds=30, times=ALWAYS))
            asked = [asyncio.create_task(producer.cancel(str(n), key=b"k")) for n in range(100)]
            await asyncio.sleep(0)  # all of them wait
            proxy.clear()
            refused, *others = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(refused, ConfigError)
            assert all(each is refused for each in others)

    asyncio.run(run())


def test_a_call_that_waits_for_its_turn_at_a_close_is_refused(
    topic: str, proxy: FaultProxy
) -> None:
    async def run() -> list[Any]:
        producer = AsyncDelayProducer(
            topic, reply_topic=f"{topic}.replies", bootstrap_servers=proxy.bootstrap_servers
        )
        await producer.start()
        proxy.inject(HELD)
        cancel = asyncio.create_task(producer.cancel("7", key=b"k"))
        await asyncio.sleep(0)
        timer = asyncio.create_task(producer.schedule("orders", b"", id="7", delay="1h"))
        await asyncio.sleep(0)
        await producer.close()
        return list(await asyncio.gather(cancel, timer, return_exceptions=True))

    cancel, timer = asyncio.run(run())
    assert isinstance(cancel, DuewheelError | IllegalStateError)
    assert isinstance(timer, IllegalStateError)
