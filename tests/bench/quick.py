"""`make bench-quick`: all figures of the scripts here, one JSON line each, in a file.

Each line: system, workload, metric, unit, value (the median of the runs), runs (their values) and
config: what was done, on which machine, and how busy it was before and after. A figure says
something beside another one of the same file; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from duewheel import __version__

SCRIPTS = ("engine.py", "cancels.py", "end_to_end.py")


def figures(script: str) -> Iterator[dict[str, Any]]:
    """The lines that a script prints; several of one workload and metric are runs of it."""
    load_before = os.getloadavg()[0]
    path = Path(__file__).with_name(script)
    done = subprocess.run(
        [sys.executable, "-P", str(path)], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[tuple[str, str], dict[str, Any]] = {}
    # Logs of what is measured come between.
    for line in (json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")):
        known = found.setdefault((line["workload"], line["metric"]), line)
        if known is not line:
            known["values"] += line["values"]
    machine = {
        "cores": os.cpu_count(),
        "load_before": round(load_before, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }
    for line in found.values():
        yield {
            "system": f"duewheel {__version__}",
            "workload": line["workload"],
            "metric": line["metric"],
            "unit": line["unit"],
            "value": statistics.median(line["values"]),
            "runs": line["values"],
            "config": {**line["config"], **machine},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="file to write")
    args = parser.parse_args()
    with args.out.open("w") as out:
        for script in SCRIPTS:
            for figure in figures(script):
                print(json.dumps(figure, ensure_ascii=False), file=out, flush=True)
                shown = f"{figure['value']:,.6g} {figure['unit']}"
                print(f"{figure['workload']:38} {figure['metric']:36} {shown}")


if __name__ == "__main__":
    main()
