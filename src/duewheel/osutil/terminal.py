"""Progress bars on stderr, drawn only where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Advanced = Callable[[int, int | None], None]  # the amount done, of all; None: how many is unknown


def unseen(_done: int, _total: int | None) -> None:
    """For callers that show nothing."""


def progress_bar() -> Progress:
    """A bar with description and count."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def bar_of_bytes(text: str) -> Iterator[Callable[[int, int], None] | None]:
    """A function that draws bytes done and in total, in MiB; None if stderr is no terminal. Only a
    first call imports the library, which a start without a bar would wait for.
    """
    if not sys.stderr.isatty():
        yield None
        return
    with ExitStack() as shown:
        drawn: tuple[Progress, TaskID] | None = None

        def draw(done: int, size: int) -> None:
            nonlocal drawn
            if drawn is None:
                bar = shown.enter_context(progress_bar())
                drawn = bar, bar.add_task(f"{text} (MiB)")
            bar, task = drawn
            bar.update(task, completed=done >> 20, total=size >> 20)

        yield draw


@contextmanager
def bar_of_count(text: str) -> Iterator[Advanced]:
    """A function that draws how many are done."""
    with progress_bar() as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class Steps:
    """A bar for work of several steps, made by `steps`."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def begin(self, text: str, total: int | None = None) -> None:
        """Names the next step; without a total the bar only shows that time passes."""
        self._bar.reset(self._task, description=text, total=total)

    def advance(self, count: int) -> None:
        """Adds to the amount that is done."""
        self._bar.update(self._task, advance=count)


@contextmanager
def steps(first: str) -> Iterator[Steps]:
    """A bar whose first step has begun."""
    with progress_bar() as bar:
        yield Steps(bar, bar.add_task(first, total=None))
