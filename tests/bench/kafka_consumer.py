"""The consumer of duewheel's deliveries: a process that writes a RECEIPT for each, at its time.

It shares no code with duewheel's delivery. A record counts as received when the response with it
has been read whole; only then its number is looked up: see `numbers`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench.kafka_wire import Connection, committed  # noqa: E402
from tests.bench.system import RECEIPT  # noqa: E402

from duewheel.clock import SystemClock  # noqa: E402
from duewheel.schemas.arrays import Int64  # noqa: E402

MARK = b"#"
DIGITS = 12
_POWERS = 10 ** np.arange(DIGITS - 1, -1, -1, dtype=np.int64)


def body_begin(number: int) -> bytes:
    """How the value of a numbered message begins."""
    return 2 * MARK + b"%0*d" % (DIGITS, number)


def numbers(records: memoryview) -> Int64:
    """Of all messages in a batch.

    Two marks side by side are in values only: a length or delta with the byte of a mark would be
    negative.
    """
    octets = np.frombuffer(records, np.uint8)
    is_mark = octets == MARK[0]
    at = np.flatnonzero(is_mark[:-1] & is_mark[1:])
    digits = octets[at[:, None] + np.arange(2, 2 + DIGITS)].astype(np.int64) - ord("0")
    found: Int64 = digits @ _POWERS
    return found


def main() -> None:
    servers, topic, partitions, out = sys.argv[1:]
    connection, clock = Connection(servers), SystemClock()
    offsets = dict.fromkeys(range(int(partitions)), 0)
    with Path(out).open("ab", buffering=0) as file:
        while True:
            fetched = connection.fetch(topic, offsets)
            now_ms = clock.now_ms()
            for partition, part in fetched.items():
                for offset, records in committed(part):
                    offsets[partition] = offset
                    if len(records):
                        number = numbers(records)
                        rows = np.full(len(number), now_ms, RECEIPT)
                        rows["number"] = number
                        file.write(rows.tobytes())


if __name__ == "__main__":
    main()
