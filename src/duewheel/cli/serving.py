"""The command `serve`."""

from __future__ import annotations

import click

from duewheel.cli.examples import CommandWithExamples
from duewheel.cli.options import with_settings
from duewheel.config.settings import Settings


@click.command("serve", cls=CommandWithExamples)
@with_settings("serve", extra="serve")
def serve(settings: Settings) -> None:
    """Serve the HTTP API of the shard.

    Runs beside ingest and dequeue, and reads their files. Listens on loopback unless [serve] says
    otherwise. Changes need serve.token_file.
    """
    from duewheel.serve.server import run_serve

    run_serve(settings)
