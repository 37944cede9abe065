"""Lists as a table on standard output: an Arrow stream, or a Parquet file."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from tempfile import TemporaryFile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from duewheel.api.arrow_columns import batches_of, schema_of
from duewheel.api.model import Result
from duewheel.errors import ConfigError

_WRITERS: dict[str, Any] = {"arrow": pa.ipc.new_stream, "parquet": pq.ParquetWriter}


def write_table(kind: str, row: type[Result], rows: Iterable[Result]) -> None:
    """Writes rows as "arrow" or "parquet"; nothing if they end with an error.

    Raises:
        ConfigError: standard output is a terminal.
    """
    if sys.stdout.isatty():
        raise ConfigError(f"--output {kind} is no text: write it to a file, with > list.{kind}")
    with TemporaryFile() as file:  # Parquet asks for its position, which a pipe does not have
        with _WRITERS[kind](file, schema_of(row)) as writer:
            for batch in batches_of(row, rows):
                writer.write_batch(batch)
        file.seek(0)
        shutil.copyfileobj(file, sys.stdout.buffer)
