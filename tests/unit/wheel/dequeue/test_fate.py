"""Why a row can never be published."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.harness.deliveries import rows

from duewheel.schemas.batches import NO_KEY
from duewheel.wheel.dequeue.fate import why_not
from duewheel.wheel.encoded import Reason, Target


def test_reasons() -> None:
    targets = {
        "orders": Target(5, 200, key_required=True),
        "bills": Target(0, 0, refusal=Reason.UNKNOWN_TARGET_TOPIC),
    }
    given = rows([*["orders", "bills"] * 3, "orders"], [0, 0, 0, 0, 5, 0, 0])
    given = replace(given, key_hash=np.array([1, 1, NO_KEY, 1, 1, 1, 1], np.int32))
    assert why_not(given, targets, [b"timers-0@6"]).tolist() == [
        Reason.NONE,
        Reason.UNKNOWN_TARGET_TOPIC,
        Reason.KEY_REQUIRED,
        Reason.UNKNOWN_TARGET_TOPIC,
        Reason.BAD_TARGET_PARTITION,
        Reason.UNKNOWN_TARGET_TOPIC,
        Reason.RECORD_REFUSED,
    ]
