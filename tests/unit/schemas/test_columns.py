"""Columnar helpers and hashes, against the plain way to do the same."""

from __future__ import annotations

import random
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2
from tests.harness.costly_inputs import of_one_hash

from duewheel.schemas import columns, hashing
from duewheel.schemas.batches import NO_KEY


def test_joining_groups_copies_nothing() -> None:
    column = columns.binary([b"zero", b"a", b"", b"bc", b"d"]).slice(1)
    groups = columns.join_groups(column, np.array([0, 2, 2, 4]))
    assert groups.to_pylist() == [b"a", b"", b"bcd"]
    assert columns.data(groups).ctypes.data == columns.data(column).ctypes.data


def test_spreading_puts_empty_values_between() -> None:
    column = columns.binary([b"x", b"ab", b"c"]).slice(1)
    assert columns.scatter(column, np.array([1, 4]), 6).to_pylist() == [
        *(b"", b"ab", b""),
        *(b"", b"c", b""),
    ]
    assert columns.scatter(columns.binary([]), np.zeros(0, np.int64), 2).to_pylist() == [b"", b""]


@given(st.lists(st.binary(max_size=3), max_size=50), st.integers(1, 9))
def test_values_are_coded_by_their_first_row(values: list[bytes], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_CODED_AT_ONCE", at_once)
        index, different = columns.coded(columns.binary(values))
    assert different.to_pylist() == list(dict.fromkeys(values))
    assert [different[place].as_py() for place in index.tolist()] == values


def test_values_chosen_for_their_hash_take_no_time_by_their_square() -> None:
    column, took_s = columns.binary(map(of_one_hash, range(1, 20_001))), []
    for encode in (columns.coded, pa.compute.dictionary_encode):
        begun_s = time.process_time()
        encode(column)
        took_s.append(time.process_time() - begun_s)
    assert 4 * took_s[0] < took_s[1]


def test_any_string_or_binary_column_becomes_one_array() -> None:
    values = ["a", None, "é"]
    for kind in (
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.dictionary(pa.int8(), pa.string()),
    ):
        chunked = pa.chunked_array([pa.array(values, kind), pa.array([], kind)])
        assert columns.large_binary(chunked).to_pylist() == [b"a", None, "é".encode()]


@given(st.lists(st.binary(max_size=9)), st.integers(0, 3))
def test_the_bytes_of_values(values: list[bytes], skipped: int) -> None:
    column, values = columns.binary(values).slice(skipped), values[skipped:]
    wanted, first = (np.isin(np.arange(256), list(each)) for each in (b"\x00ab", b"b+"))
    assert columns.only(column, wanted).tolist() == [not v.strip(b"\x00ab") for v in values]
    signed = [not v[1:].strip(b"\x00ab") and v[:1] in b"\x00ab+" for v in values]
    assert columns.only(column, wanted, first).tolist() == signed


@given(st.lists(st.binary(max_size=9)))
def test_text_is_valid_whatever_the_bytes(values: list[bytes]) -> None:
    text = columns.ascii_text(columns.binary(values))
    text.validate(full=True)
    assert text.to_pylist() == [
        value.decode() if value.isascii() else columns.NOT_ASCII for value in values
    ]


@given(st.lists(st.none() | st.binary(max_size=40), max_size=60), st.integers(0, 3))
def test_key_hashes_are_those_of_kafka(keys: list[bytes | None], skipped: int) -> None:
    column = columns.binary(keys).slice(skipped)
    assert hashing.key_hashes(column).tolist() == [
        NO_KEY if key is None else kafka_murmur2(key) & 0x7FFFFFFF for key in keys[skipped:]
    ]


def test_key_hashes_of_long_keys_are_those_of_kafka() -> None:
    rng = random.Random(7)
    sizes = [*range(70), 1_001, 4_098, 70_003, *[5_000] * 40]
    keys = [rng.randbytes(size) for size in sizes]
    assert hashing.key_hashes(columns.binary(keys)).tolist() == [
        kafka_murmur2(key) & 0x7FFFFFFF for key in keys
    ]


def test_id_hashes_do_not_depend_on_the_other_rows() -> None:
    rng = random.Random(8)
    values = [rng.randbytes(rng.randrange(60)) for _ in range(300)]
    together = hashing.id_hashes(columns.binary(values))
    alone = [int(hashing.id_hashes(columns.binary([value]))[0]) for value in values]
    assert together.tolist() == alone
    assert together.min() >= 0
    assert together.max() < 1 << 40
    assert len(set(alone)) == len(set(values))


def test_id_hashes_stay_as_they_are_on_disk() -> None:
    assert [f"{value:010x}" for value in hashing.id_hashes(columns.binary([b"", b"order-1"]))] == [
        "1d4de57214",
        "b8270dcc1b",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("hello", 99162322), ("orders", -1008770331), ("é😀", 1996812)],
)
def test_java_hash(text: str, expected: int) -> None:
    assert hashing.java_hash(text) == expected


def test_source_names() -> None:
    names = hashing.source_names(
        [("a", 0), ("b.c", 12)], np.array([1, 0, 1], np.int32), np.array([0, 5, 2**40])
    )
    assert names.to_pylist() == [b"b.c-12@0", b"a-0@5", b"b.c-12@1099511627776"]
