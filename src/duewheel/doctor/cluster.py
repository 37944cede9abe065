"""The examined cluster: one connection, which changes nothing, and the topics that parts share."""

from __future__ import annotations

from functools import cached_property

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.doctor.remedies import KafkaCommands
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.topics.description import Topic
from duewheel.kafka.topics.topic_checks import TopicChecks

TRANSACTION_LOG = "__transaction_state"


class Cluster:
    """Not thread-safe. Each call of `reader` has the deadline of a call of dequeue."""

    def __init__(self, settings: Settings, reader: TopicChecks, clock: Clock) -> None:
        """The caller closes `reader`."""
        self.settings = settings
        self.reader = reader
        self.clock = clock

    @property
    def clients(self) -> KafkaClients:
        return self.reader.clients

    @cached_property
    def commands(self) -> KafkaCommands:
        """The principal is a placeholder if the settings do not contain it."""
        kafka = self.settings.kafka
        name = kafka.client_options("admin").get("sasl_plain_username")
        if not name:
            protocol = kafka.client.get("security_protocol", "PLAINTEXT")
            name = "ANONYMOUS" if protocol == "PLAINTEXT" else "<principal>"
        return KafkaCommands(self.clients.address, f"User:{name}")

    @property
    def own_topics(self) -> list[str]:
        """Timer topics, then duewheel's other topics."""
        return [*self.timer_topics, *self.settings.service_topics.values()]

    @cached_property
    def timer_topics(self) -> list[str]:
        """Listed timer topics, existing or not, and topics that match the pattern."""
        return [*self.settings.timer.topics, *self.reader.matching_topics(self.settings)]

    @cached_property
    def topics(self) -> dict[str, Topic]:
        """Duewheel's topics, the named targets, and the transaction log, existing or not. Described
        once, as findings from several descriptions could contradict each other.
        """
        targets = self.settings.timer.named_targets
        return self.reader.topics([*self.own_topics, *targets, TRANSACTION_LOG])
