"""Draws, rotates and merges the keys of the MACs of copies (schemas/wire/copy_mac.py).

Each settings epoch has such keys, hexadecimal, the newest first (config_epochs.py). The first one
signs, all of them verify. An epoch without keys was begun by an older version: its copies count
unsigned.

- Keys are drawn, not configured: so they are as durable as the progress, and the verdict about a
  record is the same at every read. State topic and data directory must be kept secret.
- The first key is drawn with a shard's first progress, another one by `reconfigure --rotate-key`
  (wheel/admin/change_settings.py). A rotation keeps one former key: copies that it has signed may
  be on their way, or rejected and replayed later.
- A merged shard keeps the keys of both: copies of either may be on their way.
"""

from __future__ import annotations

from collections.abc import Callable

KEYS_MAX = 2  # after a rotation
_KEY_BITS = 256


def rotated(keys: tuple[str, ...], draw: Callable[[int], int]) -> tuple[str, ...]:
    """Returns the keys after a rotation: a new first one, and the one before. `draw` returns so
    many random bits.
    """
    return (f"{draw(_KEY_BITS):0{_KEY_BITS // 4}x}", *keys)[:KEYS_MAX]


def merged(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the keys of two shards that become one, each once."""
    return tuple(dict.fromkeys([*ours, *theirs]))


def signing_key(keys: tuple[str, ...]) -> bytes:
    """Returns the key for new copies; empty: there is none."""
    return bytes.fromhex(keys[0]) if keys else b""
