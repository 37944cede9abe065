"""Reads the files of a topic in a broker's directory: what a consumer does not show."""

from __future__ import annotations

from pathlib import Path

from duewheel.kafka.log.compression import decompressed
from duewheel.schemas.wire.batch_reader import committed_batches
from duewheel.schemas.wire.codec_names import Codec


def compressed_batches(data_dir: Path, topic: str) -> tuple[list[tuple[Codec, bytes]], int]:
    """Codec and body of each compressed batch, and how many others there are, without markers."""
    found = list[tuple[Codec, bytes]]()

    def decompress(codec: Codec, body: memoryview) -> bytes | bytearray:
        found.append((codec, bytes(body)))
        return decompressed(codec, body)

    files = [path.read_bytes() for path in data_dir.rglob(f"{topic}-*/*.log")]
    every = sum(len(list(committed_batches(memoryview(file), [], decompress))) for file in files)
    assert every, f"no batch of {topic}"
    return found, every - len(found)
