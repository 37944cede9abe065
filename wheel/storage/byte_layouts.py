"""The byte formats of all files except `state`.

RIP-43's two formats, big-endian, no padding:

    TimerLog record, 52 bytes                  TimerWheel entry, 32 bytes
     0 i4 size = 52                             0 i8 time      slot number (time ÷ precision)
     4 i8 prev_pos   of the same slot, or −1    8 i8 first_pos oldest record of the slot
    12 i4 magic      1 timer 2 roll 4 delete   16 i8 last_pos  newest record
    16 i8 write_time ms                        24 i4 num       how many records
    24 i4 delay      slot time − write_time    28 i4 magic     low bits of the batch sequence
    28 i8 offset_py  position of the message
    36 i4 size_py    and its size
    40 i4 topic_hash keyed hash of the target topic (schemas/hashing.py)
    44 i8 reserved   24 bits distance to the run's first record, 40 bits hash of the timer id

RIP-43 has only these three bits in magic. Here 8 beside a timer marks a recurring one, so that they
are listed without reading a message. Its second byte is the DELAY level of the request, 0
for none, so that levels are counted without reading a message. Its fourth byte, the first one on
disk, is zero until the timer is cancelled; then one store makes it MAGIC_CANCELLED. Checksums are
computed as if it were zero. MAGIC_ABANDONED replaces the whole field. Any other value is damage.

The cancel log has no slots. In its records magic is 4, its second byte is the outcome (an index in
OUTCOMES), its upper half is zero or set later (CancelRows.cut_at), and prev_pos is a check of the
fields from magic on (row_checks). A record of cancelled/<hour> names the cancelled record of that
hour's log, and the cancel in the timer topic:

     0 i8 check       of the other fields (row_checks)
     8 i8 offset      of the cancel in its partition, which is the timer's
    16 i8 position    of the timer's record in timerlog/<hour>

Positions are relative to the hour's own file. A stored message is this prefix, then the timer id
(if it is not the default one), the name of the target topic, key_value, and headers (see
schemas/batches.py). Each message has the name itself: producers choose names, so a table of them
would grow without bound.

     0 u4 crc               CRC-32C of the log record, then of the stored message with crc = 0
     4 u4 head_check        of the log record, of this prefix with both fields = 0, and of the id
                           (head_checks): a cancel reads no more of a timer
     8 i8 source_offset    16 i8 origin_offset    24 i8 due_ms
    32 i4 source_topic     36 i4 source_partition       (id of the `topics` file)
    40 u2 target_size
    42 u1 flags            1 = dead letter, 2 = reschedule, 4 = seed of a recurring timer, 8 = keep
    43 u1 id_size          44 i4 target_partition       (−1: not requested)
    48 i4 key_hash         52 i4 key_value_size  56 i4 header_count
    60 u2 roll_times       62 u2 retries
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from duewheel.schemas.arrays import Bool, Int32, Int64

RECORD = np.dtype(
    [
        ("size", ">i4"),
        ("prev_pos", ">i8"),
        ("magic", ">i4"),
        ("write_time", ">i8"),
        ("delay", ">i4"),
        ("offset_py", ">i8"),
        ("size_py", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
CANCELLATION = np.dtype([("check", ">i8"), ("offset", ">i8"), ("position", ">i8")])
ENTRY = np.dtype(
    [
        ("time", ">i8"),
        ("first_pos", ">i8"),
        ("last_pos", ">i8"),
        ("num", ">i4"),
        ("magic", ">i4"),
    ]
)
PREFIX = np.dtype(
    [
        ("crc", ">u4"),
        ("head_check", ">u4"),
        ("source_offset", ">i8"),
        ("origin_offset", ">i8"),
        ("due_ms", ">i8"),
        ("source_topic", ">i4"),
        ("source_partition", ">i4"),
        ("target_size", ">u2"),
        ("flags", "u1"),
        ("id_size", "u1"),
        ("target_partition", ">i4"),
        ("key_hash", ">i4"),
        ("key_value_size", ">i4"),
        ("header_count", ">i4"),
        ("roll_times", ">u2"),
        ("retries", ">u2"),
    ]
)
RECORD_BYTES = RECORD.itemsize
ENTRY_BYTES = ENTRY.itemsize
Entries = npt.NDArray[np.void]  # of dtype ENTRY
PREFIX_BYTES = PREFIX.itemsize
assert (RECORD_BYTES, ENTRY_BYTES, PREFIX_BYTES) == (52, 32, 64)
_LINK = struct.Struct(">4xq32xI4x")  # of a record: prev_pos, and the upper half of reserved
assert _LINK.size == RECORD_BYTES

# An abandoned record, whose slot closed before the commit: its row was written again elsewhere. The
# value is far from every other magic: a few flipped bits, or zeros, must not hide a record.
MAGIC_ABANDONED = 0x00AB_0000
MAGIC_TIMER = 1
MAGIC_ROLL = 2  # set beside MAGIC_TIMER: dequeue writes the timer to Kafka again
MAGIC_RECURRING = 8  # likewise: a recurring timer
MAGIC_CANCEL = 4  # every record of the cancel log, and no other
LEVEL_MASK = 0xFF00  # the timer's delay level; in the cancel log the outcome
_LEVEL_BITS = 8
CUT_AT_BITS = 16  # from here on magic has `cut_at`, in the cancel log
_KIND_MASK = 0xFF  # of magic: timer, roll or cancel
MAGIC_CANCELLED = 0x43  # "C": the first byte of magic in the record of a cancelled timer
_CANCELLED_BITS = 24

FLAG_DEAD_LETTER = 1
FLAG_RESCHEDULE = 2  # a timer that cancels the earlier ones of its id
FLAG_KEEP = 8  # a timer that is dropped if an earlier one of its id is pending
FLAG_SEED = 4  # the user's record of a recurring timer: it fires nothing

NO_POSITION = -1  # prev_pos of a slot's first record


DISTANCE_BITS = 24
ID_HASH_BITS = 40
RUN_RECORDS_MAX = 1 << DISTANCE_BITS

# Not of datetime.max: as a float its time is rounded up, to the year 10000.
_LAST_DATED_HOUR = int(datetime(9999, 12, 31, 23, tzinfo=UTC).timestamp()) // 3600

_HEAD = np.dtype([("record", "V52"), ("zero", ">u4"), ("prefix", "V64"), ("id_hash", ">i8")])

# See row_checks.
_CHECK_SEED = np.uint64(0x243F6A8885A308D3)  # digits of pi; with 0 a row of zeros would pass
_CHECK_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd: 2**64 over the golden ratio
_CHECK_FOLD = np.uint64(32)
_MAGIC_AT = 12  # in a record


def hour_name(hour: int) -> str:
    """Returns the file name of an hour: its UTC start, yyyymmddhh; beyond the calendar its number.

    >>> hour_name(500_000), hour_from_name("2027011508")
    ('2027011508', 500000)
    """
    if hour > _LAST_DATED_HOUR:
        return f"h{hour}"
    return datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y%m%d%H")


def hour_from_name(name: str) -> int:
    """Parses the file name of an hour."""
    if name.startswith("h"):
        return int(name[1:])
    return int(datetime.strptime(name, "%Y%m%d%H").replace(tzinfo=UTC).timestamp()) // 3600


def pack_magic(rolled: Bool, recurring: Bool, level: Int32) -> Int32:
    """Computes the magic of live records; levels are 0 … 255.

    >>> yes, no = np.array([False, True]), np.array([False, False])
    >>> [hex(magic) for magic in pack_magic(yes, no, np.array([0, 18], np.int32))]
    ['0x1', '0x1203']
    """
    kind = MAGIC_TIMER + np.where(rolled, MAGIC_ROLL, 0) + np.where(recurring, MAGIC_RECURRING, 0)
    return with_level(kind, level)


def with_level(kind: npt.NDArray[np.int_] | Int32, level: Int32) -> Int32:
    """Adds the level to magic without one."""
    assert 0 <= level.min(initial=0) <= level.max(initial=0) <= LEVEL_MASK >> _LEVEL_BITS
    magic: Int32 = (kind | level << _LEVEL_BITS).astype(np.int32)
    return magic


def level_of(magic: npt.NDArray[np.int32]) -> Int32:
    """Extracts the delay level from the magic of records."""
    level: Int32 = (magic.astype(np.int32) & LEVEL_MASK) >> _LEVEL_BITS
    return level


def slots_in(records: npt.NDArray[np.void], precision_ms: int) -> Int64:
    """Computes the slot of each log record: its write time and delay add up to the slot's end.

    >>> record = np.zeros(1, RECORD)
    >>> record["write_time"], record["delay"] = 1_000_020, 30
    >>> slots_in(record, 50)
    array([20001])
    """
    slots: Int64 = (records["write_time"].astype(np.int64) + records["delay"]) // precision_ms
    return slots


def pack_reserved(distance: Int64, lookup_hash: Int64) -> Int64:
    """Combines the two parts of the record's last field.

    >>> field = pack_reserved(np.array([7]), np.array([0xAB]))
    >>> hex(field[0]), int(distance_of(field)[0]), int(lookup_hash_of(field)[0])
    ('0x700000000ab', 7, 171)
    """
    assert 0 <= distance.min(initial=0) <= distance.max(initial=0) < RUN_RECORDS_MAX
    assert 0 <= lookup_hash.min(initial=0) <= lookup_hash.max(initial=0) < 1 << ID_HASH_BITS
    return (distance << ID_HASH_BITS) | lookup_hash


def distance_of(reserved: npt.NDArray[np.int64]) -> Int64:
    """Extracts the number of records between a record and the first of its run."""
    unsigned = reserved.astype(np.int64).view(np.uint64)
    return (unsigned >> np.uint64(ID_HASH_BITS)).astype(np.int64)


def link_at(octets: memoryview, at: int) -> tuple[int, int]:
    """Reads prev_pos and the distance to the run's first record, of the log record at byte `at`.

    >>> record = np.zeros(1, RECORD)
    >>> record["prev_pos"], record["reserved"] = 520, pack_reserved(np.array([7]), np.array([9]))
    >>> link_at(memoryview(record.tobytes()), 0)
    (520, 7)
    """
    prev_pos, reserved_high = _LINK.unpack_from(octets, at)
    return prev_pos, reserved_high >> 8


def lookup_hash_of(reserved: npt.NDArray[np.int64]) -> Int64:
    """Extracts the hash of partition and timer id from the last field of records."""
    hashes: Int64 = reserved.astype(np.int64) & ((1 << ID_HASH_BITS) - 1)
    return hashes


def is_timer(records: npt.NDArray[np.void]) -> Bool:
    """Returns which records are timers: not abandoned, and not of the cancel log."""
    timer: Bool = records["magic"] & ~(MAGIC_ROLL | MAGIC_RECURRING) & _KIND_MASK == MAGIC_TIMER
    return timer


def is_cancelled(records: npt.NDArray[np.void]) -> Bool:
    """Returns which log records are cancelled."""
    cancelled: Bool = records["magic"] >> _CANCELLED_BITS == MAGIC_CANCELLED
    return cancelled


def cancelled_bytes(octets: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Returns a view of the byte that marks each log record in `octets` as cancelled."""
    return octets[_MAGIC_AT::RECORD_BYTES]


def as_appended(records: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Returns the records as they were appended, without later marks: checksums cover that form."""
    rows = np.flatnonzero(is_cancelled(records))
    if len(rows):
        records = records.copy()
        records["magic"][rows] &= (1 << _CANCELLED_BITS) - 1
    return records


def row_checks(rows: npt.NDArray[np.void], first: int) -> Int64:
    """Computes a check of each row's bytes from `first` on, which are whole 8-byte words.

    For each big-endian word: xor, then multiply by an odd number, then xor the upper half onto the
    lower one. Each step is invertible, so damage within one word is always detected; other damage
    remains undetected once in 2**64 times.
    """
    size = rows.dtype.itemsize
    octets = np.ascontiguousarray(rows).view(np.uint8)
    words: npt.NDArray[np.uint64] = np.ndarray(
        ((size - first) // 8, len(rows)), ">u8", octets.data, first, (8, size)
    )
    check = np.full(len(rows), _CHECK_SEED)
    for word in words:
        check ^= word
        check *= _CHECK_FACTOR
        check ^= check >> _CHECK_FOLD
    return check.view(np.int64)


def head_checks(
    records: npt.NDArray[np.void], prefix: npt.NDArray[np.void], id_hash: Int64
) -> npt.NDArray[np.uint32]:
    """Computes the head_check of messages; other bytes have the same once in 2**32 times. `id_hash`
    is that of the id in the message, and 0 without one: no library computes a checksum for each
    row, and a hash is there.
    """
    rows = np.zeros(len(records), _HEAD)
    rows["record"] = np.ascontiguousarray(records).view("V52")
    rows["prefix"], rows["id_hash"] = np.ascontiguousarray(prefix).view("V64"), id_hash
    return row_checks(rows, 0).astype(np.uint32)


def cancel_checks(records: npt.NDArray[np.void]) -> Int64:
    """Computes the prev_pos of records of the cancel log: a check of the fields from magic on.
    `size`, the field before it, is always 52.
    """
    return row_checks(records, _MAGIC_AT)
