"""The codecs of record batches. Separate from record_batch.py, because the configuration names them
and each command reads that: with numpy it would start later.
"""

from __future__ import annotations

from typing import Literal, get_args

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: tuple[Codec, ...] = get_args(Codec)
"""The index of each is its number in a batch's attributes."""
