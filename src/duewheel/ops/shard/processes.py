"""The processes of a shard as `duewheel run` on this host sees them."""

from __future__ import annotations

from duewheel.api.shard import SupervisedProcess
from duewheel.config.settings import Settings
from duewheel.runtime import run_file


def supervised(settings: Settings) -> dict[str, SupervisedProcess]:
    """The processes by name; empty while no `run` works here."""
    return {
        name: SupervisedProcess.model_validate(one, from_attributes=True)
        for name, one in (run_file.read(settings.storage.data_dir) or {}).items()
    }


def is_starting(settings: Settings) -> bool:
    """Whether a `run` is starting its processes; False if it works or fails, or without the right
    to know.
    """
    try:
        processes = supervised(settings).values()
    except PermissionError:
        return False
    return any(not each.lives for each in processes) and not any(p.is_failing for p in processes)
