"""Finds the partitions of new topics that their brokers have no log for yet.

A broker makes the logs of new partitions one after the other, those of 2,000 in 10 to 20 s, while
metadata names their leaders already. A transaction waits for the last of its partitions, and those
of other topics are as fast as ever. So rows for a partition without a log are parked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from duewheel.deadline import Deadline
from duewheel.errors import DuewheelError
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.wheel.target_rules import Target

_ANSWER_S = 2.0


def without_logs(clients: KafkaClients, targets: Mapping[str, Target]) -> dict[str, Target]:
    """The targets, with their partitions that have no log as unavailable ones. Without an answer
    they are as they were.
    """
    partitions = [
        (topic, number)
        for topic, target in targets.items()
        for number in range(target.partitions)
        if number not in target.unavailable
    ]
    found = dict(targets)
    if not partitions:
        return found
    try:
        with LogReader(clients, list(targets), partial(Deadline, _ANSWER_S)) as reader:
            present = reader.present_ends(partitions, committed=False)
    except DuewheelError:
        return found
    absent: dict[str, set[int]] = {}
    for topic, number in set(partitions).difference(present):
        absent.setdefault(topic, set()).add(number)
    for topic, numbers in absent.items():
        found[topic] = replace(found[topic], unavailable=found[topic].unavailable | numbers)
    return found
