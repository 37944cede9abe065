"""docs/upgrades.md says what the code does: format numbers, refusals, and unknown fields."""

from __future__ import annotations

import json
import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from tests.harness.progress_rows import partitions_of, progress_of

from duewheel.checkpoints import durable_checkpoint, progress, state_file
from duewheel.checkpoints.deflated import inflated
from duewheel.checkpoints.progress import Progress
from duewheel.client.handle import VERSION as HANDLE
from duewheel.errors import RecoveryRefused
from duewheel.streaming.spark_checkpoint import VERSION as SPARK

WRITTEN = progress_of(partitions_of(1, 2))
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "upgrades.md").read_text("utf-8")


def test_the_numbers_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (v?\d+) \|", PAGE, re.MULTILINE)
    assert dict(rows) == {
        "data directory": str(state_file.FORMAT),
        "durable checkpoint": str(durable_checkpoint.FORMAT),
        "progress": str(progress.FORMAT),
        "recall handle": str(HANDLE),
        "checkpoint of Spark's query": SPARK.decode(),
    }


def test_the_pinned_libraries_are_those_of_the_package() -> None:
    pinned = re.findall(r"^\| (kafka-python|pyspark|rocksdict) (\d[\d.]+\d) \|", PAGE, re.MULTILINE)
    exact = re.findall(r"^([\w-]+)==([\d.]+)", "\n".join(requires("duewheel") or []), re.MULTILINE)
    assert sorted(pinned) == sorted(exact)


def with_fields(**fields: object) -> bytes:
    """The bytes of a progress in which some fields are others."""
    head, _, body = inflated(WRITTEN.encode()).partition(b"\n")
    return json.dumps(json.loads(head) | fields).encode() + b"\n" + body


def test_a_progress_of_another_format_is_refused_with_both_numbers() -> None:
    said = f"format {progress.FORMAT + 1}, this version reads {progress.FORMAT}.*another app.id"
    with pytest.raises(RecoveryRefused, match=said):
        Progress.decode(with_fields(format=progress.FORMAT + 1))


def test_an_unknown_field_is_read_over_and_not_written_back() -> None:
    found = Progress.decode(with_fields(later=1))
    assert found == WRITTEN
    assert b"later" not in inflated(found.encode())
