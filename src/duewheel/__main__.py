"""The command `duewheel`, also as `python -m duewheel`.

It starts where only the client is installed, too: there it says so, or names the extra that a
command needs.
"""

import sys

from duewheel import __version__, extras
from duewheel.errors import ConfigError


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    if sys.argv[1:] == ["--version"]:
        print(f"duewheel, version {__version__}")
        return
    if sys.argv[1:] == ["health"]:  # without the command line, which costs ten times as much
        from duewheel.runtime import health_command

        sys.exit(health_command.main())
    try:
        from duewheel.cli.main import main as run_command

        run_command()
    except ModuleNotFoundError as error:
        command = [*sys.argv[1:], ""][0]
        text = extras.remedy(error, extras.of_command(command))
        if text is None:
            raise
        if command in {"", "-h", "--help"}:
            print(extras.help_text(), end="")
            sys.exit(0 if command else ConfigError.exit_code)
        print(f"duewheel: {text}", file=sys.stderr)
        sys.exit(ConfigError.exit_code)


if __name__ == "__main__":
    main()
