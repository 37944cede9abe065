"""The keys and values of a timeline in RocksDB.

key    slot (8 bytes, big-endian), log position of the run's first record (8)
value  number of its records (4)
key    0xff… (8 bytes), batch (8): its runs come with it in one atomic write
key    0xfe… (8 bytes), batch (8): the first that is kept; each later one must have its key
"""

from __future__ import annotations

import numpy as np

from duewheel.schemas.arrays import Int64
from duewheel.wheel.storage.runs import Runs, SlotRuns

KEY_BYTES = 16
COUNT_BYTES = 4
FIRST_KEPT, BATCHES = b"\xfe" * 8, b"\xff" * 8  # above the key of every slot
FIRST, END = bytes(KEY_BYTES), b"\xff" * (KEY_BYTES + 1)


def slot_key(slot: int) -> bytes:
    """Returns the least key that a run of this slot, or of a later one, can have."""
    return max(slot, 0).to_bytes(8, "big") + bytes(8)


def numbered_key(kind: bytes, batch: int) -> bytes:
    """Returns the key of a batch; `kind` is BATCHES or FIRST_KEPT."""
    return kind + batch.to_bytes(8, "big")


def encoded(runs: Runs) -> tuple[bytes, bytes]:
    """Returns the concatenated keys of the runs, and their values."""
    assert not len(runs) or int(runs.slot.min()) >= 0, "a negative slot would sort after all others"
    keys = np.stack([runs.slot, runs.first_pos], 1).astype(">i8")
    return keys.tobytes(), runs.count.astype(">u4").tobytes()


def counts_in(counts: bytes | bytearray) -> Int64:
    """Returns the numbers in concatenated values."""
    return np.frombuffer(counts, ">u4").astype(np.int64)


def decoded(keys: bytes | bytearray, counts: bytes | bytearray) -> SlotRuns:
    """Returns the runs of concatenated keys and values."""
    columns = np.frombuffer(keys, ">i8").astype(np.int64).reshape(-1, 2)
    return SlotRuns(columns[:, 0].copy(), columns[:, 1].copy(), counts_in(counts))


def whole_slots(runs: SlotRuns, records_max: int) -> tuple[SlotRuns, int]:
    """Returns the runs of the first slots that have up to `records_max` records together, of one
    slot at least; and the last of these slots.
    """
    ends = np.cumsum(runs.count)
    begins = np.flatnonzero(np.append(True, runs.slot[1:] != runs.slot[:-1]))
    of_slots = ends[np.append(begins[1:], len(runs)) - 1]
    slots = max(1, int((of_slots <= records_max).sum()))
    if slots == len(begins):
        return runs, int(runs.slot[-1])
    rows = slice(0, int(begins[slots]))
    cut = SlotRuns(runs.slot[rows], runs.first_pos[rows], runs.count[rows])
    return cut, int(runs.slot[rows.stop]) - 1
