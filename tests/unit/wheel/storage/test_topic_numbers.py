"""The file that numbers topic names, with its torn ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from duewheel.errors import CorruptFile
from duewheel.wheel.storage.topic_numbers import TopicNames


def test_names_keep_their_numbers(tmp_path: Path) -> None:
    names = TopicNames(tmp_path)
    assert names.ids(["b", "a", "b"]).tolist() == [0, 1, 0]
    assert names.ids(["ü.c-d"]).tolist() == [2]
    again = TopicNames(tmp_path)
    assert again.names(2) == ["b", "a", "ü.c-d"]
    assert again.ids(["a", "new"]).tolist() == [1, 3]


def test_a_reader_finds_what_was_appended_since(tmp_path: Path) -> None:
    reader = TopicNames(tmp_path)
    TopicNames(tmp_path).ids(["a", "b"])
    assert reader.names(1) == ["a", "b"]
    with pytest.raises(CorruptFile, match="no topic has the id 2"):
        reader.names(2)


def test_an_append_cut_anywhere_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "topics"
    TopicNames(tmp_path).ids(["kept"])
    begin = path.stat().st_size
    TopicNames(tmp_path).ids(["a-long-name-that-is-cut"])
    whole = path.read_bytes()
    for size in range(begin, len(whole)):
        path.write_bytes(whole[:size])
        names = TopicNames(tmp_path)
        assert names.ids(["kept", "x"]).tolist() == [0, 1]
        assert names.ids(["longer-than-what-was-cut-there"]).tolist() == [2]
        assert TopicNames(tmp_path).names(2) == ["kept", "x", "longer-than-what-was-cut-there"]


def test_a_damaged_name_is_not_read(tmp_path: Path) -> None:
    TopicNames(tmp_path).ids(["first", "second"])
    path = tmp_path / "topics"
    path.write_bytes(path.read_bytes().replace(b"first", b"fIrst"))
    with pytest.raises(CorruptFile, match="checksum"):
        TopicNames(tmp_path).names(0)


def test_names_in_each_others_place_are_not_read(tmp_path: Path) -> None:
    TopicNames(tmp_path).ids(["first", "second", "third"])
    path = tmp_path / "topics"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    for lines in ((second, first, third), (first, third), (first, first, second, third)):
        path.write_bytes(b"".join(lines))
        with pytest.raises(CorruptFile, match="another's line"):
            TopicNames(tmp_path).names(0)


def test_a_lost_last_name_is_missed(tmp_path: Path) -> None:
    TopicNames(tmp_path).ids(["first", "second"])
    path = tmp_path / "topics"
    whole = path.read_bytes()
    TopicNames(tmp_path).require(2)
    for content in (whole[:-2], whole.replace(b"second", b"sEcond"), whole.splitlines()[0] + b"\n"):
        path.write_bytes(content)
        with pytest.raises(CorruptFile, match="1 topic names can be read, 2 are in use"):
            TopicNames(tmp_path).require(2)
