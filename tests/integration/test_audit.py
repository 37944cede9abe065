"""`duewheel audit` on real Kafka and Spark: beside `run`, by itself, and over changed settings."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter

import psutil
import pytest
from kafka import KafkaProducer
from tests.harness.whole_shard import WholeShard, schedule

from duewheel.api.audit import AuditResult
from duewheel.audit.history import AuditHistory

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.crash_matrix,
    pytest.mark.usefixtures("java"),
    pytest.mark.timeout(900),
]

FAR = ("TIMER_DELAY_SEC", b"7200")


def audits_of(process: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in process.children():
        try:
            if "audit" in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def test_run_audits_everything_once_and_in_the_background(shard: WholeShard) -> None:
    """Each goes on where the last has ended; then the same by hand, and what it finds."""
    with shard.config.open("a") as file:
        file.write('[audit]\ninterval = "10s"\nrejected_max = 0.5\n')
    history = AuditHistory(shard.settings.audit_dir)
    shard.start()
    known = schedule(shard, 2_000, seed=11)
    rows = len(known) + shard.probes
    seen: set[int] = set()
    by_id: dict[str, AuditResult] = {}

    def all_audited() -> bool:
        for audit in audits_of(psutil.Process(shard.supervisor_pid)):
            seen.add(audit.nice())
        if newest := history.newest():
            by_id[newest.id] = newest
        return bool(sum(result.rows for result in by_id.values()) >= rows)

    shard.wait(all_audited)
    results = [by_id[number] for number in sorted(by_id)]
    assert sum(result.rows for result in results) == rows
    assert all(result.ok for result in results)
    codes = Counter(timer.code.decode() for timer, *_ in known.values() if timer.due_ms is None)
    assert sum((Counter(result.rejected) for result in results), Counter()) == codes
    for before, after in itertools.pairwise(results):
        for partition, (start, _) in after.ranges.items():
            assert start == before.audited.get(partition, start)
    assert max(seen) >= 10
    shard.wait(lambda: "audit_rows" in shard.scrape("ingest"))
    assert shard.stop() == 0
    assert not [p for p in psutil.process_iter(["cmdline"]) if _is_audit(p, shard)]
    by_hand(shard, rows, codes)


def _is_audit(process: psutil.Process, shard: WholeShard) -> bool:
    words = process.info["cmdline"] or []
    return "audit" in words and str(shard.config) in words


def by_hand(shard: WholeShard, rows: int, codes: Counter[str]) -> None:
    """Beside a transaction that stays open: what it hides is not waited for."""
    held = KafkaProducer(
        bootstrap_servers=shard.servers,
        transactional_id=f"{shard.timers}.held",
        transaction_timeout_ms=600_000,  # an audit takes a minute where much else runs
    )
    held.init_transactions()
    held.begin_transaction()
    held.send(shard.timers, b"not committed", headers=[FAR], partition=0).get(timeout=30)
    strict = ("--from", "0", "--set", "audit.rejected_max=0", "--output", "json")
    found = shard.command("audit", *strict, code=1)
    assert (found["rows"], found["rejected"]) == (rows, codes)
    assert found["disagreements"] == {"count": 0, "first": []}
    failed = [each["code"] for each in found["rows_suite"] if not each["success"]]
    assert failed == ["too_many_rejected"]
    held.abort_transaction()
    held.close()
    again = shard.command("audit", "--from", "last", "--output", "json")
    assert (again["rows"], again["ok"]) == (0, True)
    shard.command("audit", "--timer-topic", shard.target, code=2)


def test_each_message_is_judged_by_the_settings_that_it_came_under(shard: WholeShard) -> None:
    suite = shard.config.parent / "orders.json"
    digits = {"column": "value", "regex": r"^far \d$"}
    suite.write_text(
        json.dumps(
            {"expectations": [{"type": "expect_column_values_to_match_regex", "kwargs": digits}]}
        )
    )
    shard.start()
    write(shard, 5)
    shard.wait(lambda: bool(shard.status()["pending"] == 5))
    assert shard.stop() == 0
    lower = ("--set", "timer.max_delay=1h", "--set", f"timer.topic.{shard.timers}.suite={suite}")
    shard.command("reconfigure", *lower)
    time.sleep(0.1)
    write(shard, 3)
    lenient = ("--set", "audit.rejected_max=1", "--output", "json")
    found = shard.command("audit", *lower, *lenient, code=1)  # probes fail the suite
    assert (found["rows"], found["rejected"]) == (8 + shard.probes, {"delay_too_long": 3})
    assert found["disagreements"]["count"] == 0
    (own,) = found["topic_suites"][shard.timers]
    assert (own["rows"], own["failed"]) == (5 + shard.probes, shard.probes)
    site = shard.settings.audit_dir / "gx" / "uncommitted" / "data_docs" / "local_site"
    pages = {path.name: path.read_text() for path in (site / "validations").rglob("*.html")}
    own_page = f"{shard.timers}.html"
    assert set(pages) == {"epoch-0.html", "epoch-1.html", "duewheel-rows.html", own_page}
    assert "3600000" in pages["epoch-1.html"]
    assert (shard.settings.audit_dir / "result.json").exists()


def write(shard: WholeShard, count: int) -> None:
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    for number in range(count):
        producer.send(shard.timers, b"far %d" % number, headers=[FAR]).get(timeout=30)
    producer.close()
