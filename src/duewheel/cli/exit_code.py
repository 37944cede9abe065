"""Ends a command line with its exit code (errors.py), and notes why for `run`."""

from __future__ import annotations

import sys

import click

from duewheel.cli.output import say
from duewheel.errors import AS_ITS_USER, ConfigError, DuewheelError, Unreadable
from duewheel.runtime import exit_reason
from duewheel.threads import watch_libraries


def run_to_the_end(cli: click.Group) -> None:
    """Runs the command of this process, and ends the process."""
    watch_libraries()
    try:
        code = cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = ConfigError.exit_code
    except DuewheelError as error:
        say(str(error))
        exit_reason.write(str(error))
        code = error.exit_code
    except PermissionError as error:
        say(f"{error}: {AS_ITS_USER}")
        exit_reason.write(str(error))
        code = Unreadable.exit_code
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        code = 130
    except Exception as error:
        exit_reason.write(f"{type(error).__name__}: {error}")
        raise
    sys.exit(code or 0)
