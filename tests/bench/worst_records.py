"""What each kind of input costs: `python -P tests/bench/worst_records.py` measures all of
tests/harness/costly_inputs.py, and writes the costliest of each group into docs/bounds.md.

Each is measured in a process of its own, for its memory.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

import structlog

# The last place to look for modules: a folder called `wheel` is there.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.harness import costly_inputs as inputs
from tests.harness.costly_inputs import InputKind, kinds
from tests.harness.costs import CostedShard, Costs

MB = 1 << 20
PAGE = Path(__file__).resolve().parents[2] / "docs" / "bounds.md"
HEAD = "| input | ingest | its lock | dequeue | one by one | memory | bound by |"
BOUNDS: Mapping[str, str] = {
    inputs.ORDINARY: "their bytes",
    inputs.EMPTY: "2,000,000 of a record batch (`schemas/wire/batch_reader.py`)",
    inputs.BATCHES: "bytes after decompression (`streaming/byte_budget.py`)",
    inputs.UNREAD: "the same; one dead letter for each",
    inputs.HEADERS: "1,000,000 of a record batch (`batch_reader.py`)",
    inputs.NAMES: "a dead letter for each record",
    inputs.HUGE: "the broker's largest record",
    inputs.SMALL: "1,024 values are coded at once (`schemas/columns.py`)",
    inputs.TARGETS: "2,000 partitions of a transaction (`wheel/dequeue_config.py`)",
    inputs.TIMES: "20,000 rows of a transaction (`dequeue.chunk_records`)",
    inputs.EXPIRIES: "1,000 headers (`wheel/policies/expiry.py`)",
    inputs.FORGED: "their bytes, once for each key (`schemas/wire/copy_mac.py`)",
    inputs.CANCELS: "1 KiB each (`byte_budget.py`); 1,000 replies of a transaction",
    inputs.RESCHEDULES: "the same",
    inputs.RECURRING: "`recurring = true`; 64 KiB each (`schemas/header_names.py`); 1,000 of a "
    "transaction",
    inputs.EXPRESSIONS: "the same; 100 bytes each; nine years are searched "
    "(`wheel/cron_instants.py`)",
}


@dataclass(frozen=True, slots=True)
class KindFigures:
    """Of one kind, per MB of records, decompressed."""

    kind: InputKind
    costs: Costs
    memory: float  # bytes of memory per byte

    @property
    def figures(self) -> tuple[float, ...]:
        costs = self.costs
        ingest_s = costs.read_s + costs.append_s
        return ingest_s, costs.locked_s, costs.dequeue_s, costs.one_by_one_s

    def line(self, name: str) -> str:
        figures = " | ".join(f"{each:.3f}" for each in self.figures)
        return f"| {name} | {figures} | {self.memory:.0f} |"


def measured(kind: InputKind, tries: int) -> KindFigures:
    """In a child, whose peak of memory begins with the input."""
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(out)
        with tempfile.TemporaryDirectory() as folder, os.fdopen(into, "wb") as pipe:
            pickle.dump(_measure(kind, Path(folder) / "shard", tries), pipe)
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    seconds, memory = pickle.loads(content)
    return KindFigures(kind, Costs(*seconds), memory)


def _measure(kind: InputKind, folder: Path, tries: int) -> tuple[tuple[float, ...], float]:
    octets = kind.build(MB)
    shard = CostedShard(folder)
    shard.take(next(kinds()).build(MB // 10))
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak begins anew
    best = shard.take(octets, kind.topic, kind.wait_s)
    memory = (_status("VmHWM") - before) / max(MB, len(octets))
    for _ in range(tries - 1):
        best = best.best(shard.take(octets, kind.topic, kind.wait_s))
    shard.kill()
    per_mb = MB / max(MB, len(octets))
    records, *seconds = astuple(best)
    return (records, *(each * per_mb for each in seconds)), memory


def _status(name: str) -> int:
    (found,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    return int(found) << 10


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable()
    tries = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    worst: dict[str, KindFigures] = {}
    for kind in kinds():
        found = measured(kind, tries)
        print(found.line(f"{kind.group}: {kind.name}"), flush=True)
        before = worst.get(kind.group)
        if before is None or sum(before.figures) < sum(found.figures):
            worst[kind.group] = found
    rows = [f"{worst[group].line(group)} {bound} |" for group, bound in BOUNDS.items()]
    table = "\n".join([HEAD, "| --- " * HEAD.count(" |") + "|", *rows])
    text = PAGE.read_text("utf-8")
    PAGE.write_text(re.sub(rf"{re.escape(HEAD)}\n(?:\|.*\n)+", table + "\n", text), "utf-8")


if __name__ == "__main__":
    main()
