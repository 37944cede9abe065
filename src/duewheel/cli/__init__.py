"""The command line: commands, flags, and the output of results. A command calls one of `ops`.

main            the list of commands, by module; command_groups: loads one when it runs
timers, changes, schedules, file_import, dead_letters, receipts, topics, shard, reconfigure,
recovery        the commands of a subject
processes       those that are processes; developing: for a trial; examination: of `doctor`
options         those of several commands; set_option: `--set`; request_options: fields of a request
replies         waits for a reply, or for ingest
output          text or JSON; pages, arrow_output: lists; status_text, times: for people
command_help, examples
                the end of each help
exit_code       how a command line ends
"""

import sys

# structlog looks for rich, for a renderer that no command uses: a tenth of a second and 10 MB in
# each process. A progress bar imports it later.
if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401 - now, without it

    del sys.modules["rich"]
