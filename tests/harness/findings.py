"""What tests of `duewheel doctor` share: described topics, and the severities of findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from duewheel.api.examination import DoctorFinding
from duewheel.kafka.topics.description import Partition, Topic


def severities(found: Iterable[DoctorFinding]) -> list[str]:
    """The severity of each, in their order."""
    return [finding.severity for finding in found]


def partition(replicas: int, in_sync: int | None = None, leader: int = 1) -> Partition:
    return Partition(0, leader, replicas, replicas if in_sync is None else in_sync)


def topic(replicas: int = 3, in_sync_min: int = 2, **changed: Any) -> Topic:
    config = {"min.insync.replicas": str(in_sync_min), "unclean.leader.election.enable": "false"}
    return replace(Topic("t", 0, "id", (partition(replicas),), frozenset(), config), **changed)
