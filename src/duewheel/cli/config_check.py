"""The command `config check`."""

from __future__ import annotations

import click

from duewheel.cli.examples import CommandGroup
from duewheel.cli.options import show, with_output, with_settings
from duewheel.config.settings import Settings


@click.group(cls=CommandGroup)
def config() -> None:
    """Check the configuration."""


@config.command("check")
@click.option("--all", "everything", is_flag=True, help="also the defaults, and all bounds")
@with_output
@with_settings()
def config_check(settings: Settings, *, everything: bool, output: str) -> None:
    """Read the settings as the processes do; print those that differ from the defaults,
    and the targets that each timer topic is open for.

    Secrets are shown as stars. JSON has all settings, and the bounds that follow from them.
    """
    from duewheel.config.differences import differing
    from duewheel.ops.bounds_in_force import bounds
    from duewheel.ops.changes.acceptance import require_contract

    require_contract(settings)
    settings.kafka.client_options("admin")  # reads the files that it names
    opened, differs = {"open_targets": settings.timer.open_targets}, differing(settings)
    in_force = {name: each.as_json() for name, each in bounds(settings).items()}
    others = {**settings.redacted(), "bounds": in_force}
    if output == "json":
        show({"differs": differs, **opened, **others}, output)
        return
    show({**differs, **opened}, output)
    if everything:
        click.echo()
        show(others, output)
    else:
        click.echo("no contradictions; the other settings have their defaults: --all shows them")
