"""Runs a soak (rounds.py) and prints the result: a line of JSON.

    make soak ROUNDS=100 SEED=1              one broker
    make soak ROUNDS=100 SEED=1 BROKERS=3    three, of which one is killed at a time
    make soak ROUNDS=100 RECORD=1            adds the line, with commit and date, to docs/soak.jsonl

The line holds the faults that were found (duewheel.prove.verdict), `recovery_s` of each, what
has happened, and the configuration. Exit code 1 if anything was lost, doubled, early, altered or
out of order, if acknowledged records are gone, or if deliveries did not flow again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def origin() -> dict[str, str | int]:
    """What a recorded line is of: the commit, the day, and the machine's processors."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    now = datetime.now(UTC)
    cores = len(os.sched_getaffinity(0))
    return {"commit": commit.stdout.strip(), "date": f"{now:%Y-%m-%d}", "cores": cores}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=100, help="timers a second")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--record", type=Path, help="append the line, with commit and date")
    parser.add_argument("--folder", type=Path, help="kept, with all logs; default: a temporary one")
    args = parser.parse_args()
    # The last place to look for modules: a folder called `wheel` lies there.
    sys.path.append(str(ROOT))
    from tests.soak.rounds import Plan, soak

    kinds = Plan.kinds if args.brokers == 1 else (*Plan.kinds, "coordinator")
    plan = Plan(args.rounds, args.seed, args.rate, args.brokers, kinds)
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="duewheel-soak-") as name:
        folder = args.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = soak(plan, folder.resolve())
    print("\n".join([*outcome.verdict.details[:20], outcome.stuck]).strip(), file=sys.stderr)
    line = outcome.as_json() | {"wall_s": round(time.monotonic() - begun_s)}
    print(json.dumps(line))
    if args.record:
        with args.record.open("a", encoding="utf-8") as records:
            records.write(json.dumps(line | origin()) + "\n")
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main())
