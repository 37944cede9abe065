"""Schedules that are set, applied, paused and resumed at any time, against instants that are
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.harness.schedule_shard import TIMER, write_settings
from tests.harness.served import KitWriter

from duewheel.api.schedules import NewSchedule
from duewheel.config.settings import load
from duewheel.errors import ConfigError
from duewheel.ops.schedules import apply_file, changes
from duewheel.ops.schedules.read_before_change import LogEnds, log_ends
from duewheel.testing.service import LocalService

MINUTE_MS = 60_000
NEAR_MS = 2_000  # an instant so near to a change may be on either side of it


class Wanted(NamedTuple):
    """The fields of a schedule; times in minutes, the end from the beginning of the test."""

    every: int
    ends: int | None
    version: int


@dataclass
class Expected:
    """A schedule, and its instants."""

    wanted: Wanted
    begins_ms: int
    ends_ms: int | None
    paused: bool = False

    def next_ms(self, now_ms: int) -> int | None:
        every_ms = self.wanted.every * MINUTE_MS
        due_ms = self.begins_ms + every_ms * ((now_ms - self.begins_ms) // every_ms + 1)
        return due_ms if self.ends_ms is None or due_ms <= self.ends_ms else None

    def last_ms(self, now_ms: int) -> int:
        every_ms = self.wanted.every * MINUTE_MS
        return self.begins_ms + every_ms * ((now_ms - self.begins_ms) // every_ms)


@dataclass
class Shard:
    """A shard, and what is expected of it."""

    service: LocalService
    path: Path
    schedules: dict[str, Expected] = field(default_factory=dict)
    fired: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.settings = load(write_settings(self.service, self.path))
        self.writer = KitWriter(self.settings, self.service)
        self.begins_ms = self.now_ms

    @property
    def now_ms(self) -> int:
        return self.service.clock.now_ms()

    @property
    def ends(self) -> LogEnds:
        return log_ends(self.settings, ["timers"])

    def expected(self, wanted: Wanted) -> Expected:
        ends_ms = None if wanted.ends is None else self.begins_ms + wanted.ends * MINUTE_MS
        return Expected(wanted, self.now_ms, ends_ms)

    def new(self, name: str, wanted: Wanted) -> dict[str, object]:
        fields: dict[str, object] = {"every": f"{wanted.every}m", "target": "reports"}
        fields["value"] = f"{name} {wanted.version}"
        if wanted.ends is not None:
            fields["ends"] = self.begins_ms + wanted.ends * MINUTE_MS
        return fields

    def set_(self, name: str, wanted: Wanted) -> None:
        expected = self.expected(wanted)
        can_fire = expected.next_ms(self.now_ms) is not None
        new = NewSchedule.of(self.new(name, wanted))
        with _refused(not can_fire):
            changes.put(self.writer, name, new, self.ends, may_add=True)
        if can_fire:
            self.schedules[name] = expected

    def apply(self, file: dict[str, Wanted], prune: bool) -> None:
        tables = (
            f"[{name}]\n" + "".join(f"{k} = {v!r}\n" for k, v in self.new(name, each).items())
            for name, each in file.items()
        )
        text = "".join(tables)
        path = self.path / "file.toml"
        path.write_text(text)
        rows = apply_file.apply(self.writer, path, prune=prune, dry_run=False, wait_s=0)
        before = dict(self.schedules)
        for name, wanted in file.items():
            known, expected = before.get(name), self.expected(wanted)
            if known is not None and known.wanted == wanted:
                continue
            if expected.next_ms(self.now_ms) is None:
                self.schedules.pop(name, None)
                continue
            expected.paused = known is not None and known.paused
            self.schedules[name] = expected
        if prune:
            self.schedules = {name: s for name, s in self.schedules.items() if name in file}
        changed = {row.name for row in rows if row.change != "unchanged"}
        assert changed == {
            name
            for name in before.keys() | self.schedules.keys()
            if before.get(name) is not self.schedules.get(name)
        }

    def pause(self, name: str) -> None:
        with _refused(name not in self.schedules):
            changes.pause(self.writer, name, None, self.ends, "")
            self.schedules[name].paused = True

    def resume(self, name: str) -> None:
        found = self.schedules.get(name)
        with _refused(found is None or found.next_ms(self.now_ms) is None):
            changes.resume(self.writer, name, None, self.ends)
            self.schedules[name].paused = False

    def stop(self, name: str) -> None:
        with _refused(name not in self.schedules):
            changes.stop(self.writer, name, None, self.ends)
            del self.schedules[name]

    def advance(self, minutes: int) -> None:
        before_ms, end_ms = self.now_ms, self.now_ms + minutes * MINUTE_MS + 1_000
        self.service.advance_to(end_ms)
        for name, each in list(self.schedules.items()):
            at_ms: int | None = before_ms
            while at_ms is not None and not each.paused:
                at_ms = each.next_ms(at_ms)
                if at_ms is None:
                    del self.schedules[name]
                elif at_ms <= end_ms:
                    self.fired[f"{name} {each.wanted.version}"] += 1
                else:
                    break

    def check(self) -> None:
        now_ms = self.now_ms
        for each in self.schedules.values():
            near = (
                (each.next_ms(now_ms) or now_ms + NEAR_MS) - now_ms,
                now_ms - each.last_ms(now_ms),
            )
            assume(min(near) >= NEAR_MS or each.begins_ms == now_ms)
        found = Counter((each.value or b"").decode() for each in self.service.delivered("reports"))
        assert found == self.fired
        assert {t.id.decode() for t in self.service.pending()} == self.schedules.keys()


@contextmanager
def _refused(is_refused: bool) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        assert is_refused
    else:
        assert not is_refused


names = st.sampled_from(("a", "b"))
wanted = st.builds(
    Wanted,
    every=st.sampled_from((20, 60, 130)),
    ends=st.sampled_from((None, 150, 400)),
    version=st.integers(1, 2),
)
steps = st.one_of(
    st.tuples(st.just("advance"), st.sampled_from((7, 23, 61, 133))),
    st.tuples(st.just("advance"), st.sampled_from((7, 23, 61, 133))),
    st.tuples(st.just("set_"), names, wanted),
    st.tuples(st.just("apply"), st.dictionaries(names, wanted, min_size=1), st.booleans()),
    st.tuples(st.sampled_from(("pause", "resume", "stop")), names),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, min_size=2, max_size=12))
@example([("set_", "a", Wanted(20, None, 1)), ("advance", 7), ("resume", "a"), ("advance", 23)])
@example(
    [
        ("apply", {"a": Wanted(130, 150, 1)}, False),
        ("advance", 61),
        ("apply", {"a": Wanted(130, 150, 1)}, True),
        ("advance", 133),
    ]
)
def test_each_instant_fires_once(plan: list[tuple[Any, ...]]) -> None:
    with (
        LocalService.started({"timer": TIMER}) as service,
        TemporaryDirectory() as folder,
        patch.object(apply_file, "READ_PAUSES_S", ()),
    ):
        shard = Shard(service, Path(folder))
        for name, *words in plan:
            getattr(shard, name)(*words)
            shard.check()
