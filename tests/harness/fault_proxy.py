"""A proxy between Kafka clients and one broker that injects faults on request.

It listens on a port of 127.0.0.1 and forwards every request to the broker, and every answer back.
It replaces the addresses in the answers by its own, so that clients stay connected to it. The test
chooses a `Fault` for a request:

    REFUSE        answered with an error code; the broker never gets it
    MISREPORT     done by the broker, and then answered with an error code: the client cannot know
    CUT           the connection ends before the request is handed on
    CUT_DONE      done by the broker; the connection ends before the answer
    HOLD          forwarded after a while, even if the client has disconnected: a late packet
    HOLD_ANSWER   done by the broker; the answer comes after a while
    LEADERLESS    of Metadata: done by the broker; the answer says that a partition has no leader
    WITHHOLD      of ApiVersions: done by the broker; the answer lacks an API
    SWALLOW       the connection stays open, and nothing ever comes back on it: half open

and without any request, `away` and `back`: connections are cut and refused, as of a dead broker.

A frame is a size in 4 bytes (big endian) and as many bytes: in a request api key, api version,
correlation id, client id; in an answer the correlation id. Answers come in the order of requests.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import TracebackType
from typing import Any, Self

from kafka.protocol.admin import DescribeClusterResponse
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

HOST = "127.0.0.1"
_LEADER_NOT_AVAILABLE = 5
ALWAYS = 1 << 30
_CALL_S = 30.0


class Action(Enum):
    """What happens to a request; see the module's head."""

    REFUSE = auto()
    MISREPORT = auto()
    CUT = auto()
    CUT_DONE = auto()
    HOLD = auto()
    HOLD_ANSWER = auto()
    LEADERLESS = auto()
    WITHHOLD = auto()
    SWALLOW = auto()


@dataclass
class Fault:
    """Which requests are hit, and how.

    Attributes:
        api: "Produce", "EndTxn", …: one of `_REQUESTS`; "" for every request.
        action: what happens to them.
        code: Kafka's error code, of REFUSE and MISREPORT; of WITHHOLD the key of the API.
        seconds: how long at most, of HOLD and HOLD_ANSWER; no longer than the fault is in place.
        topic: of Produce, only what goes to this topic; the rest of a refused request is done. Of
            LEADERLESS, whose partition.
        partition: of the topic, only this one; None for all.
        skip: how many are let through first.
        times: how many are hit, at most; ALWAYS for all while the fault is in place.
        hits: how many were.
        passed: how many were let through.
        done: how many of the hit ones the broker has answered.
        over: set once it is no longer in place.
    """

    api: str
    action: Action
    code: int = 0
    seconds: float = 0.0
    topic: str = ""
    partition: int | None = None
    skip: int = 0
    times: int = 1
    hits: int = field(default=0, init=False)
    passed: int = field(default=0, init=False)
    done: int = field(default=0, init=False)
    over: asyncio.Event = field(default_factory=asyncio.Event, init=False, repr=False)

    def takes(self, request: _Request) -> bool:
        """Whether this request is hit; counts."""
        if self.api not in {"", request.api} or self.hits >= self.times:
            return False
        if self.topic and not request.names(self):
            return False
        if self.passed < self.skip:
            self.passed += 1
            return False
        self.hits += 1
        return True

    def concerns(self, topic: str, partition: int) -> bool:
        """Whether it is about this partition."""
        return self.topic in {"", topic} and self.partition in {None, partition}


_REQUESTS: dict[int, Any] = {
    request.API_KEY: request
    for request in (
        ProduceRequest,
        ListOffsetsRequest,
        MetadataRequest,
        FindCoordinatorRequest,
        ApiVersionsRequest,
        InitProducerIdRequest,
        AddPartitionsToTxnRequest,
        EndTxnRequest,
        TxnOffsetCommitRequest,
    )
}


class _Request:
    """A request's frame, decoded as far as it is asked for."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.key, self.version, self.correlation_id = struct.unpack_from(">hhi", frame)
        self._class = _REQUESTS.get(self.key)
        self.api = self._class.name.removesuffix("Request") if self._class else str(self.key)

    def decoded(self) -> Any:
        assert self._class is not None, f"api key {self.key} cannot be decoded here"
        return self._class.decode(self.frame, version=self.version, header=True)

    def names(self, fault: Fault) -> bool:
        """Whether it is about what the fault concerns; of Metadata, whether it is about the topic
        or about all.
        """
        if self.api == "Metadata":
            asked = self.decoded().topics
            return asked is None or fault.topic in {topic.name for topic in asked}
        return any(
            fault.concerns(data.name, partition.index)
            for data in self.decoded().topic_data
            for partition in data.partition_data
        )

    def without(self, fault: Fault) -> bytes:
        """The frame of a Produce request less what the fault concerns; nothing if that is all."""
        request = self.decoded()
        for data in request.topic_data:
            data.partition_data = [
                part for part in data.partition_data if not fault.concerns(data.name, part.index)
            ]
        request.topic_data = [data for data in request.topic_data if data.partition_data]
        return bytes(request.encode(header=True)) if request.topic_data else b""

    def refusal(self, fault: Fault, answer: bytes) -> bytes:
        """The frame of an answer that says the fault's code for every part that it concerns.

        Args:
            fault: what is refused.
            answer: the broker's to the rest, if there was one.
        """
        request = self.decoded()
        response = _REFUSALS[self.api](request, fault)
        if answer and fault.topic:
            real = ProduceResponse.decode(answer, version=self.version, header=True)
            for data in real.responses:
                data.partition_responses = [
                    part
                    for part in data.partition_responses
                    if not fault.concerns(data.name, part.index)
                ]
            response.responses += [data for data in real.responses if data.partition_responses]
        response.API_VERSION = self.version
        response.with_header(correlation_id=self.correlation_id)
        return bytes(response.encode(header=True))

    def leaderless(self, fault: Fault, answer: bytes) -> bytes:
        """The broker's answer to Metadata, with partitions that have no leader."""
        response = MetadataResponse.decode(answer, version=self.version, header=True)
        for topic in response.topics:
            for partition in topic.partitions:
                if fault.concerns(topic.name, partition.partition_index):
                    partition.leader_id, partition.error_code = -1, _LEADER_NOT_AVAILABLE
                    partition.isr_nodes = []
        return bytes(response.encode(header=True))

    def withholding(self, fault: Fault, answer: bytes) -> bytes:
        """The broker's answer to ApiVersions, less one API."""
        response = ApiVersionsResponse.decode(answer, version=self.version, header=True)
        response.api_keys = [row for row in response.api_keys if row.api_key != fault.code]
        return bytes(response.encode(header=True))

    def readdressed(self, answer: bytes, port: int) -> bytes:
        """The broker's answer with this proxy's address in place of the broker's."""
        kind = _ADDRESSES.get(self.key)
        if kind is None:
            return answer
        response = kind.decode(answer, version=self.version, header=True)
        if kind is FindCoordinatorResponse:
            nodes = response.coordinators or [response]
        else:
            nodes = response.brokers
        for node in nodes:
            if node.port > 0:
                node.host, node.port = HOST, port
        return bytes(response.encode(header=True))


_ADDRESSES: dict[int, Any] = {
    response.API_KEY: response
    for response in (MetadataResponse, FindCoordinatorResponse, DescribeClusterResponse)
}


def _refused_produce(request: Any, fault: Fault) -> Any:
    topic_type = ProduceResponse.TopicProduceResponse
    partition_type = topic_type.PartitionProduceResponse
    return ProduceResponse(
        responses=[
            topic_type(
                name=data.name,
                partition_responses=[
                    partition_type(
                        index=partition.index,
                        error_code=fault.code,
                        base_offset=-1,
                        log_append_time_ms=-1,
                        log_start_offset=-1,
                    )
                    for partition in data.partition_data
                    if fault.concerns(data.name, partition.index)
                ],
            )
            for data in request.topic_data
            if any(fault.concerns(data.name, part.index) for part in data.partition_data)
        ],
        throttle_time_ms=0,
    )


def _refused_partitions(request: Any, fault: Fault) -> Any:
    topic_type = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    partition_type = topic_type.AddPartitionsToTxnPartitionResult
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        results_by_topic_v3_and_below=[
            topic_type(
                name=topic.name,
                results_by_partition=[
                    partition_type(partition_index=index, partition_error_code=fault.code)
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ],
    )


def _refused_offsets(request: Any, fault: Fault) -> Any:
    topic_type = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    partition_type = topic_type.TxnOffsetCommitResponsePartition
    return TxnOffsetCommitResponse(
        throttle_time_ms=0,
        topics=[
            topic_type(
                name=topic.name,
                partitions=[
                    partition_type(partition_index=partition.partition_index, error_code=fault.code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _refused_coordinators(request: Any, fault: Fault) -> Any:
    coordinator_type = FindCoordinatorResponse.Coordinator
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        coordinators=[
            coordinator_type(key=key, node_id=-1, host="", port=-1, error_code=fault.code)
            for key in request.coordinator_keys
        ],
    )


_REFUSALS: dict[str, Any] = {
    "FindCoordinator": _refused_coordinators,
    "Produce": _refused_produce,
    "AddPartitionsToTxn": _refused_partitions,
    "TxnOffsetCommit": _refused_offsets,
    "EndTxn": lambda _, fault: EndTxnResponse(throttle_time_ms=0, error_code=fault.code),
    "InitProducerId": lambda _, fault: InitProducerIdResponse(
        throttle_time_ms=0, error_code=fault.code, producer_id=-1, producer_epoch=-1
    ),
}


class FaultProxy:
    """A proxy before one broker; see the module's head. Thread-safe.

        with FaultProxy(broker.bootstrap_servers) as proxy:
            fault = proxy.inject(Fault("EndTxn", Action.CUT_DONE, times=1))
            ...                              # clients of proxy.bootstrap_servers
            assert fault.hits == 1

    Attributes:
        seen: how many requests came, by name.
        asked: api key and version of every kind of request that came.
        errors: of the proxy itself; raised by the end of the with block.
    """

    def __init__(self, broker: str) -> None:
        """Listens from now on.

        Args:
            broker: host:port of the real one.
        """
        host, port = broker.rsplit(":", 1)
        self._broker = (host, int(port))
        self.seen: Counter[str] = Counter()
        self.asked: set[tuple[int, int]] = set()
        self.errors: list[Exception] = []
        self._faults: list[Fault] = []
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._socket = _bound(0)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy")
        self._thread.start()
        self.back()

    @property
    def bootstrap_servers(self) -> str:
        """host:port for clients."""
        return f"{HOST}:{self.port}"

    def inject(self, fault: Fault) -> Fault:
        """Have a copy of the fault in place from now on; of several the first one counts."""
        placed = replace(fault)
        self._loop.call_soon_threadsafe(self._faults.append, placed)
        return placed

    def clear(self) -> None:
        """Let everything through again, what is being held included."""
        self._call(self._clear())

    def away(self) -> None:
        """Cut all connections and refuse new ones."""
        self._call(self._away())

    def back(self) -> None:
        """Take connections again."""
        self._call(self._listen())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()
        self.away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._socket.close()
        if self.errors and error is None:
            raise self.errors[0]

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        done.result(_CALL_S)

    async def _clear(self) -> None:
        for fault in self._faults:
            fault.over.set()
        self._faults.clear()

    async def _away(self) -> None:
        # The port stays taken, by a socket that does not listen: no client is given it for its own.
        held = _bound(self.port)
        assert self._server is not None, "already away"
        self._server.close()
        self._socket = held
        self._server = None
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # the sockets are closed in the loop's next round

    async def _listen(self) -> None:
        assert self._server is None, "already there"
        self._server = await asyncio.start_server(self._connected, sock=self._socket)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_Connection(self, reader, writer).run(*self._broker))
        self._open.add(task)
        # Even if it is cancelled before it has begun.
        task.add_done_callback(lambda _: writer.transport.abort())
        task.add_done_callback(self._open.discard)

    def fault_of(self, request: _Request) -> Fault | None:
        self.seen[request.api] += 1
        self.asked.add((request.key, request.version))
        return next((fault for fault in self._faults if fault.takes(request)), None)


class _Connection:
    """One client's connection, and its own one to the broker."""

    def __init__(
        self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._client = (reader, writer)
        # Handed on or refused, not answered yet. None: no more come.
        self._unanswered: asyncio.Queue[tuple[_Request, Fault | None, bool] | None]
        self._unanswered = asyncio.Queue()

    async def run(self, host: str, port: int) -> None:
        """Until either side ends, or a fault ends it."""
        try:
            self._broker = await asyncio.open_connection(host, port)
        except OSError:
            return  # it is away
        requests = asyncio.create_task(self._requests())
        answers = asyncio.create_task(self._answers())
        try:
            await asyncio.wait([answers])
        finally:
            self._broker[1].transport.abort()
            requests.cancel()
            answers.cancel()
            for result in await asyncio.gather(requests, answers, return_exceptions=True):
                if isinstance(result, Exception):
                    self._proxy.errors.append(result)

    async def _requests(self) -> None:
        """From the client to the broker."""
        try:
            await self._hand_on()
        finally:
            self._unanswered.put_nowait(None)

    async def _hand_on(self) -> None:
        reader, _ = self._client
        while (frame := await _read_frame(reader)) is not None:
            request = _Request(frame)
            fault = self._proxy.fault_of(request)
            action = fault.action if fault else None
            if action is Action.CUT:
                return
            if action is Action.SWALLOW:
                await reader.read()
                return
            if fault and action is Action.HOLD:
                await _wait(fault)
            if fault and action is Action.REFUSE:
                frame = request.without(fault) if fault.topic else b""
            if frame:
                await _write_frame(self._broker[1], frame)
            self._unanswered.put_nowait((request, fault, bool(frame)))

    async def _answers(self) -> None:
        """From the broker to the client; ends the connection by its end."""
        while (entry := await self._unanswered.get()) is not None:
            request, fault, asked = entry
            answer = b""
            if asked:
                frame = await _read_frame(self._broker[0])
                if frame is None:
                    return
                answer = request.readdressed(frame, self._proxy.port)
                if fault:
                    fault.done += 1
            if fault and fault.action is Action.CUT_DONE:
                return
            if fault and fault.action is Action.HOLD_ANSWER:
                await _wait(fault)
            if fault and fault.action in {Action.REFUSE, Action.MISREPORT}:
                answer = request.refusal(fault, answer)
            if fault and fault.action is Action.LEADERLESS:
                answer = request.leaderless(fault, answer)
            if fault and fault.action is Action.WITHHOLD:
                answer = request.withholding(fault, answer)
            with suppress(OSError):  # it is gone: what it has asked for is done all the same
                await _write_frame(self._client[1], answer)


def _bound(port: int) -> socket.socket:
    """A socket bound to the port, not listening, beside another one of ours on the same port."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((HOST, port))
    return made


async def _wait(fault: Fault) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(fault.over.wait(), fault.seconds)


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame without its size; None at the end of the connection."""
    try:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError):
        return None


async def _write_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(struct.pack(">i", len(frame)) + frame)
    await writer.drain()
