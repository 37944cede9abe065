"""A cache that forgets."""

from __future__ import annotations

from duewheel.kafka.targets.ttl_cache import TtlCache


def test_what_is_known_of_topics_is_bounded() -> None:
    known: TtlCache[str, int] = TtlCache(entries_max=10)
    for number in range(100):
        known.put(f"t{number}", number, 60)
    assert sum(known.get_stale(f"t{number}") is not None for number in range(100)) == 10
    assert known.get("t89") is None
    assert known.get("t90") == 90
    known.put("old", 1, -1)
    assert known.get("old") is None
