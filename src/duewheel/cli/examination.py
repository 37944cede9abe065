"""Runs the examination of `duewheel doctor`, and prints its findings."""

from __future__ import annotations

from collections.abc import Iterator

from duewheel.api.examination import DoctorFinding, Examined, Severity
from duewheel.cli.output import Printer
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.doctor.examination import examine
from duewheel.doctor.findings import summed_up
from duewheel.errors import KafkaUnavailable
from duewheel.osutil.terminal import progress_bar


def run(settings: Settings, clock: Clock) -> Examined:
    """Examines, with a progress bar."""
    with progress_bar() as bar:
        task = bar.add_task("examining", total=None)

        def begun(part: str, parts: int) -> None:
            bar.update(task, description=f"examining: {part}", total=parts, advance=1)

        return summed_up(list(examine(settings, clock, begun)))


def report(examined: Examined, output: Printer) -> int:
    """Prints all findings; returns the exit code."""
    output.show(examined, as_lines(examined))
    return exit_code(examined)


def exit_code(examined: Examined) -> int:
    """The exit code: 3 if Kafka was not reachable, 1 with errors, 0 otherwise."""
    return KafkaUnavailable.exit_code if examined.is_unreachable else int(not examined.ok)


def as_lines(examined: Examined) -> Iterator[str]:
    """Formats a table, with each remedy once below its findings, and the sums."""
    findings = examined.findings
    columns = zip(*((f.severity, f.code, f.subject) for f in findings), strict=True)
    widths = [max(map(len, column)) for column in columns]
    by_remedy: dict[tuple[Severity, str], list[DoctorFinding]] = {}
    for f in findings:
        by_remedy.setdefault((f.severity, f.remedy), []).append(f)
    for (_, remedy), shared in by_remedy.items():
        for f in shared:
            cells = (f.severity, f.code, f.subject)
            named = "  ".join(map(str.ljust, cells, widths))
            yield f"{named}  {f.found}"
        if remedy:
            yield f"{'':{widths[0]}}  → {remedy}"
    fine = len(findings) - examined.errors - examined.warnings
    yield f"errors: {examined.errors}, warnings: {examined.warnings}, ok: {fine}"
