"""Tries seeds of the model of recovery.

    python tests/model/run.py --seeds 20000 --first 0
    python tests/model/run.py --seeds 500 --break each
    python tests/model/run.py --first 17 --break one_clause --show

Prints a line of JSON; fails if an unbroken rule is violated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import track

if __name__ == "__main__":  # a script's neighbours are found from the top folder
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.model.clauses import Clauses, broken, clause_names
from tests.model.judge import Violation
from tests.model.world import THEMES, World


def violation(
    seed: int, clauses: Clauses, theme: str | None = None, *, recurring: bool = False
) -> str | None:
    """What a seed breaks, None if all holds."""
    try:
        World(seed, clauses, theme, recurring=recurring).run()
    except Violation as found:
        return str(found)
    return None


def _try(task: tuple[range, Clauses, str | None, bool]) -> list[tuple[int, str]]:
    seeds, clauses, theme, recurring = task
    found = ((seed, violation(seed, clauses, theme, recurring=recurring)) for seed in seeds)
    return [(seed, what) for seed, what in found if what is not None]


def try_seeds(
    first: int, count: int, clauses: Clauses, theme: str | None = None, *, recurring: bool = False
) -> dict[str, object]:
    """Figures of many seeds, on two processors."""
    tasks = [
        (range(s, min(s + 100, first + count)), clauses, theme, recurring)
        for s in range(first, first + count, 100)
    ]
    shown = Console(stderr=True)
    with ProcessPoolExecutor(2) as pool:
        tried = track(pool.map(_try, tasks), "seeds, by the hundred", len(tasks), console=shown)
        bad = [found for part in tried for found in part]
    kinds = Counter(what.split(":")[0] for _, what in bad)
    return {"seeds": count, "violations": len(bad), "kinds": dict(kinds), "first": bad[:5]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--break", dest="clause", choices=[*clause_names(), "each"])
    parser.add_argument("--theme", choices=list(THEMES), help="what may go wrong; else any of them")
    parser.add_argument("--recurring", action="store_true", help="half of the timers recur")
    parser.add_argument("--show", action="store_true", help="the schedule of the seed --first")
    options = parser.parse_args()
    clauses = Clauses() if options.clause in {None, "each"} else broken(options.clause)
    if options.show:
        world = World(options.first, clauses, options.theme, recurring=options.recurring)
        try:
            world.run()
        finally:
            print("\n".join(world.trace))
        return
    if options.clause == "each":
        for clause in clause_names():
            result = try_seeds(
                options.first,
                options.seeds,
                broken(clause),
                options.theme,
                recurring=options.recurring,
            )
            print(json.dumps({clause: result}), flush=True)
        return
    result = try_seeds(
        options.first, options.seeds, clauses, options.theme, recurring=options.recurring
    )
    print(json.dumps(result))
    sys.exit(1 if result["violations"] else 0)


if __name__ == "__main__":
    main()
