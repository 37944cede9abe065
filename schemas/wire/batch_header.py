"""The 61 bytes before the records of a batch, in Kafka's format 2. Separate from record_batch.py,
because the client reads batches without numpy.
"""

from __future__ import annotations

import struct

HEADER = struct.Struct(
    ">"
    "q"  #  0  base offset: the broker's to fill in
    "i"  #  8  batch length, from the next field on
    "i"  # 12  partition leader epoch: the broker's to fill in
    "b"  # 16  magic: 2
    "I"  # 17  CRC-32C of everything after it
    "h"  # 21  attributes: bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control
    "i"  # 23  last offset delta
    "q"  # 27  base timestamp, ms
    "q"  # 35  largest timestamp, ms
    "q"  # 43  producer id
    "h"  # 51  producer epoch
    "i"  # 53  base sequence
    "i"  # 57  number of records
)
HEADER_BYTES = HEADER.size
LENGTH_END = struct.calcsize(">qi")  # the batch length counts from here
CRC_OFFSET = struct.calcsize(">qiib")
CRC = struct.Struct(">I")
CRC_END = CRC_OFFSET + CRC.size  # the checksum covers all from here
MAGIC = 2
assert HEADER_BYTES == 61
assert (LENGTH_END, CRC_OFFSET, CRC_END) == (12, 17, 21)
