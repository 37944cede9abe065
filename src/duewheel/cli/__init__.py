"""The command line: commands, flags, and the output of results."""

import sys

# structlog looks for rich, for a renderer that no command uses: a tenth of a second and 10 MB in
# each process. A progress bar imports it later.
if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401 - now, without it

    del sys.modules["rich"]
