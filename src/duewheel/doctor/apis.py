"""The Kafka APIs that duewheel's clients use, and the check that a broker offers them.

The list has all that kafka-python, in the version that producer_internals.py supports, sent while
every command ran against Kafka 4.2 (docs/kafka-apis.md); a test records it again. Kafka-compatible
systems offer some of the APIs, at versions of their own.

    version_min   the lowest version with the fields that duewheel uses
    version_max   the highest version that duewheel can send

A broker must offer some version between them: an old broker ends below, a future one begins above.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from duewheel.api.examination import Severity
from duewheel.doctor.findings import Check, Findings
from duewheel.kafka.ledger.producer_internals import OLDEST_BROKER

Offered = Mapping[int, tuple[int, int]]  # lowest and highest version by the API's key

OLDEST_KAFKA = ".".join(map(str, OLDEST_BROKER))  # an older one does not offer all of NEEDED
_KAFKA_REMEDY = f"Kafka {OLDEST_KAFKA} or newer offers it: upgrade the brokers, or ask their vendor"
_TOO_NEW_REMEDY = "the brokers are too new for this version: upgrade duewheel"


@dataclass(frozen=True, slots=True)
class Api:
    """One API; the module's head explains the versions."""

    key: int  # Kafka's number for it
    name: str
    version_min: int
    version_max: int
    users: str  # the parts of duewheel that use it
    lost: str  # the feature that is missing without it
    severity: Severity = "error"  # if the API is absent


NEEDED = (
    Api(0, "Produce", 3, 9, "dequeue, client", "transactional record batches"),
    Api(1, "Fetch", 4, 12, "ingest, progress, dlq", "reads of committed records only"),
    Api(2, "ListOffsets", 2, 11, "ingest, progress, dlq", "offsets by time, and of the stable end"),
    Api(3, "Metadata", 10, 13, "everything", "topic ids: a recreated topic goes unnoticed"),
    Api(10, "FindCoordinator", 1, 6, "dequeue", "lookup of the transaction coordinator"),
    Api(18, "ApiVersions", 0, 4, "everything", "agreement on versions"),
    Api(22, "InitProducerId", 4, 4, "dequeue", "fencing of a shard's older instance"),
    Api(24, "AddPartitionsToTxn", 0, 3, "dequeue", "transactions"),
    Api(26, "EndTxn", 0, 3, "dequeue", "transactions"),
    Api(32, "DescribeConfigs", 1, 4, "start, dequeue, init", "topic settings and size limits"),
    Api(19, "CreateTopics", 4, 7, "init", "creation of missing topics by `init`", "warning"),
    Api(37, "CreatePartitions", 0, 3, "init, reshard", "addition of shards", "warning"),
)
"""SaslHandshake (17) and SaslAuthenticate (36) are left out: without them a client that needs SASL
gets no connection at all."""

OPTIONAL = (
    Api(25, "AddOffsetsToTxn", 0, 3, "doctor", "the trial of group offsets", "ok"),
    Api(28, "TxnOffsetCommit", 0, 3, "doctor", "the trial of group offsets", "ok"),
    Api(9, "OffsetFetch", 1, 8, "doctor", "the trial of group offsets", "ok"),
    Api(65, "DescribeTransactions", 0, 0, "doctor, standby", "the state of transactions", "ok"),
    Api(20, "DeleteTopics", 1, 6, "doctor", "removal of the scratch topic", "ok"),
    Api(42, "DeleteGroups", 0, 2, "doctor", "removal of the trial's group", "ok"),
)


def lacking(api: Api, offered: Offered) -> str:
    """Describes how a broker lacks an API; empty if it offers the API."""
    if api.key not in offered:
        return "not offered"
    low, high = offered[api.key]
    if high < api.version_min:
        return f"offered up to version {high}, {api.version_min} is required"
    if _is_too_new(api, offered):
        return f"offered from version {low} on, the clients support up to {api.version_max}"
    return ""


def _is_too_new(api: Api, offered: Offered) -> bool:
    return api.key in offered and offered[api.key][0] > api.version_max


def check_apis(offers: Mapping[str, Offered]) -> Findings:
    """Checks the APIs that each broker offers, by name of the broker."""
    whole = True
    for api in (*NEEDED, *OPTIONAL):
        for broker, offered in offers.items():
            problem = lacking(api, offered)
            if problem:
                whole = False
                found = (
                    f"{api.name} (key {api.key}) is {problem}; {api.users} would lose: {api.lost}"
                )
                remedy = _TOO_NEW_REMEDY if _is_too_new(api, offered) else _KAFKA_REMEDY
                yield Check("kafka_api", broker).of(api.severity, found, remedy)
    if whole and offers:
        count = len(NEEDED) + len(OPTIONAL)
        yield Check("kafka_api", ", ".join(offers)).ok(f"all {count} APIs are offered")
