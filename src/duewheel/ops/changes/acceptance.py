"""Refuses a timer that ingest would dead-letter, before it is written."""

from __future__ import annotations

from collections.abc import Sequence

from duewheel import factory
from duewheel.checkpoints.progress import Progress
from duewheel.config import setting_names
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, Misconfigured
from duewheel.schemas.request.preview import rejection_of
from duewheel.schemas.wire.single_record import Header

NOT_ALLOWED = "target_not_allowed"  # the timer topic is not open for the target
_NOT_RECURRING = "recurring_not_allowed"


def require_accepted(
    settings: Settings,
    timer_topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
    now_ms: int,
) -> None:
    """Refuses a timer that ingest would dead-letter.

    Raises:
        ConfigError: with the reason and code of the dead letter.
    """
    contract = factory.contract(settings)
    rejection = rejection_of(contract, timer_topic, key, value, headers, now_ms)
    if rejection is None:
        return
    text = f"it would become a dead letter: {rejection.reason} ({rejection.code})"
    if rejection.code == NOT_ALLOWED:
        names = ", ".join(contract.topic(timer_topic).open_targets) or "no target"
        text += f"; {timer_topic} is open for {names}"
    if rejection.code == _NOT_RECURRING:
        table = f'[timer.topic."{timer_topic}"]'
        text += f"; set recurring = true in {table}, then run `duewheel reconfigure`"
    raise ConfigError(text)


def require_in_force(settings: Settings, progress: Progress | None) -> None:
    """Refuses settings that differ from those by which ingest judges: a timer that they permit
    could become a dead letter. A shard without progress has yet to take them.

    Raises:
        Misconfigured: names the settings that differ.
    """
    if progress is None:
        return
    if factory.dequeue_config(settings).changes(progress, settings.wheel):
        old = progress.epochs.newest.values
        changed = setting_names.changed(old, settings, factory.slot_values(settings))
        raise Misconfigured(
            f"nothing was written; the shard follows other settings than these, by "
            f"{', '.join(sorted(changed))}: run `duewheel reconfigure`, or restore the old values"
        )


def require_contract(settings: Settings) -> None:
    """Raises a ConfigError if no rules for timers can be made of the settings."""
    factory.contract(settings)
