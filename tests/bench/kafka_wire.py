"""As much of Kafka's protocol as a load needs: produce and fetch ready-made record batches.

A client library decodes and encodes every record by itself, which on two cores would be most of
what is measured. The broker is a single one and leads all partitions. Versions of requests are the
last before the "flexible" encoding: brokers from 1.0 to 4.x take them. One thread per connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_PRODUCE, _FETCH = 0, 1
_PRODUCE_VERSION, _FETCH_VERSION = 3, 5
_ALL_REPLICAS, _READ_COMMITTED = -1, 1
_NO_LEADER_YET = (3, 5, 6)  # of a topic that has just been created
_TIMEOUT_S = 60.0
_CLIENT = b"bench"
_RECORDS_BEGIN = 61
_BATCH = struct.Struct(">qiibIhiqqqhii")
_TRANSACTIONAL, _CONTROL, _ABORT = 1 << 4, 1 << 5, 0


@dataclass(frozen=True)
class Fetched:
    """What a fetch brought of one partition.

    Attributes:
        aborted: producer id and first offset of each aborted transaction among the records.
        records: record batches, the last one perhaps cut off.
    """

    aborted: list[tuple[int, int]]
    records: memoryview


class Connection:
    """To one broker."""

    def __init__(self, servers: str) -> None:
        host, _, port = servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def produce(self, request: bytes) -> None:
        """Send what `produce_request` has made; its answer is `acknowledged` later, in order."""
        self._socket.sendall(request)

    def acknowledged(self) -> None:
        """Wait for the answer to the oldest `produce` that has none yet.

        Raises:
            OSError: the broker has refused a batch.
        """
        read = _Reader(self._response())
        for _ in range(read.int32()):
            read.string()
            for _ in range(read.int32()):
                partition, error, _offset, _time = read.unpack(">ihqq")
                if error:
                    raise OSError(f"partition {partition} refused a batch: Kafka error {error}")

    def fetch(
        self, topic: str, offsets: Mapping[int, int], wait_ms: int = 500, bytes_max: int = 16 << 20
    ) -> dict[int, Fetched]:
        """Committed records of some partitions, from an offset of each on."""
        body = struct.pack(">iiiibi", -1, wait_ms, 1, bytes_max, _READ_COMMITTED, 1)
        body += _string(topic) + struct.pack(">i", len(offsets))
        for partition, offset in offsets.items():
            body += struct.pack(">iqqi", partition, offset, -1, bytes_max)
        self._socket.sendall(_request(_FETCH, _FETCH_VERSION, body))
        read = _Reader(self._response())
        read.int32()  # throttled for so many ms
        fetched = {}
        for _ in range(read.int32()):
            read.string()
            for _ in range(read.int32()):
                partition, error, _high, _stable, _start = read.unpack(">ihqqq")
                aborted = [read.unpack(">qq") for _ in range(max(0, read.int32()))]
                if error and error not in _NO_LEADER_YET:
                    raise OSError(f"{topic}-{partition} cannot be read: Kafka error {error}")
                fetched[partition] = Fetched([(p, o) for p, o in aborted], read.octets())
        return fetched

    def _response(self) -> memoryview:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)[4:]  # without the correlation id: answers come in order

    def _exactly(self, size: int) -> memoryview:
        whole = memoryview(bytearray(size))
        done = 0
        while done < size:
            count = self._socket.recv_into(whole[done:])
            if not count:
                raise ConnectionError("the broker has closed the connection")
            done += count
        return whole


def produce_request(topic: str, batches: Mapping[int, bytes]) -> bytes:
    """A whole request, with one record batch for each of some partitions."""
    no_transaction = struct.pack(">h", -1)
    body = no_transaction + struct.pack(">hii", _ALL_REPLICAS, int(_TIMEOUT_S * 1000), 1)
    parts = [body, _string(topic), struct.pack(">i", len(batches))]
    for partition, batch in batches.items():
        parts += [struct.pack(">ii", partition, len(batch)), batch]
    return _request(_PRODUCE, _PRODUCE_VERSION, b"".join(parts))


def committed(fetched: Fetched) -> Iterator[tuple[int, memoryview]]:
    """The records of each batch that a read_committed consumer delivers, and the offset behind it.

    Batches of aborted transactions and markers come too, with no records: an offset moves on.
    """
    aborted = sorted(fetched.aborted, key=lambda each: each[1])
    dropping: set[int] = set()
    rest = fetched.records
    while len(rest) >= _RECORDS_BEGIN:
        head = _BATCH.unpack_from(rest)
        first, length, attributes, last_delta, producer = head[0], head[1], *head[5:7], head[9]
        if len(rest) < 12 + length:
            return
        batch, rest = rest[: 12 + length], rest[12 + length :]
        while aborted and aborted[0][1] <= first:
            dropping.add(aborted.pop(0)[0])
        records = batch[_RECORDS_BEGIN:]
        if attributes & _CONTROL:
            if _is_abort(records):
                dropping.discard(producer)
            records = records[:0]
        elif attributes & _TRANSACTIONAL and producer in dropping:
            records = records[:0]
        yield first + last_delta + 1, records


def _is_abort(records: memoryview) -> bool:
    """Of a control batch: its one record begins with five fields of a byte; its key is two int16,
    of which the second says what it marks."""
    (kind,) = struct.unpack_from(">h", records, 5 + 2)
    return bool(kind == _ABORT)


def _request(api: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api, version, 0, len(_CLIENT)) + _CLIENT
    return struct.pack(">i", len(head) + len(body)) + head + body


def _string(text: str) -> bytes:
    octets = text.encode()
    return struct.pack(">h", len(octets)) + octets


class _Reader:
    """Reads the fields of a response one after the other."""

    def __init__(self, octets: memoryview) -> None:
        self._octets = octets
        self._at = 0

    def unpack(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._octets, self._at)
        self._at += struct.calcsize(layout)
        return values

    def int32(self) -> int:
        return self.unpack(">i")[0]

    def string(self) -> None:
        (size,) = self.unpack(">h")
        self._at += max(0, size)

    def octets(self) -> memoryview:
        size = max(0, self.int32())
        self._at += size
        return self._octets[self._at - size : self._at]
