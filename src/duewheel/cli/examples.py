"""Commands to try, at the end of each command's help."""

from __future__ import annotations

# A command without an entry fails tests/unit/cli/test_examples.py.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "init": ("duewheel init", "duewheel init --partitions 12 --replication-factor 3"),
    "run": ("duewheel run", "duewheel run --config /etc/duewheel.toml"),
    "standby": ("duewheel standby --data-dir /var/lib/duewheel-standby",),
    "promote": ("duewheel promote --data-dir /var/lib/duewheel-standby",),
    "ingest": ("duewheel ingest --config /etc/duewheel.toml",),
    "dequeue": ("duewheel dequeue --config /etc/duewheel.toml",),
    "pause": ("duewheel pause dequeue", "duewheel pause --target mails --for 2h"),
    "resume": ("duewheel resume dequeue",),
    "health": ("duewheel health",),
    "status": ("duewheel status", "duewheel status --all --output json"),
    "stats": ("duewheel stats", "duewheel stats --by topic"),
    "list": (
        "duewheel list --id reminder-42",
        "duewheel list --tag spring-sale",
        "duewheel list --target orders --from 2027-01-15T08:00Z --limit 1000 --output json",
    ),
    "show": (
        "duewheel show --id reminder-42 --body",
        "duewheel show --id orders.delayed-3@17 --output json",
    ),
    "receipts": (
        "duewheel receipts --id reminder-42",
        "duewheel receipts --target orders --from 2027-01-15T08:00Z --limit 1000 --output json",
    ),
    "serve": ("duewheel serve", "duewheel serve --set serve.token_file=/etc/duewheel/token"),
    "check": ("duewheel check",),
    "doctor": ("duewheel doctor", "duewheel doctor --output json"),
    "audit": ("duewheel audit --from last", "duewheel audit --timer-topic orders.delayed"),
    "topic create": ("duewheel topic create orders",),
    "topic read": (
        "duewheel topic read orders",
        "duewheel topic read orders --follow",
        "duewheel topic read scheduled_messages --for-send > waiting.jsonl",
    ),
    "config check": ("duewheel config check --config duewheel.toml",),
    "send": (
        "duewheel send --target orders --value 'pay your order' --key order-42 --delay 15m",
        "duewheel send --target orders --value hello --deliver-at 2027-01-15T08:00Z",
    ),
    "send-lines": (
        "duewheel send-lines timers.jsonl --target orders --delay 15m",
        "duewheel send-lines - --target orders < timers.jsonl",
    ),
    "import": (
        "duewheel import waiting.jsonl --name from-karafka --dry-run",
        "duewheel import waiting.jsonl --name from-karafka --skip-refused",
    ),
    "cancel": (
        "duewheel cancel --id reminder-42 --key order-42",
        "duewheel cancel --handle AQAAAAIAAAAAAAAR --no-wait",
    ),
    "cancel-matching": (
        "duewheel cancel-matching --target orders --to 2027-01-15T08:00Z --dry-run",
        "duewheel cancel-matching --tag spring-sale",
    ),
    "reschedule": (
        "duewheel reschedule --handle AQAAAAIAAAAAAAAR --delay 1h",
        "duewheel reschedule --id r-42 --key order-42 --delay 1h --target orders --value pay",
    ),
    "relay postgres": (
        "duewheel relay postgres --set relay.database=service=shop",
        "duewheel relay postgres --config /etc/duewheel.toml --name shop",
    ),
    "schedule set": (
        "duewheel schedule set report --cron '0 8 * * *' --zone Europe/Berlin --target a --value b",
        "duewheel schedule set poll --every 90s --target orders --value poll --missed one",
    ),
    "schedule list": ("duewheel schedule list --output json",),
    "schedule next": ("duewheel schedule next report",),
    "schedule pause": ("duewheel schedule pause report --note 'until the audit'",),
    "schedule resume": ("duewheel schedule resume report",),
    "schedule stop": ("duewheel schedule stop report",),
    "schedule apply": (
        "duewheel schedule apply -f schedules.toml --dry-run",
        "duewheel schedule apply -f schedules.toml --prune",
    ),
    "schedule trigger": ("duewheel schedule trigger report",),
    "reconfigure": ("duewheel reconfigure --dry-run",),
    "reshard": ("duewheel reshard --to 4 --dry-run",),
    "recover": ("duewheel recover --dry-run", "duewheel recover --from-mirror A. --dry-run"),
    "dlq list": (
        "duewheel dlq list --code unknown_target_topic",
        "duewheel dlq list --from 2027-01-15T08:00:00Z --limit 1000 --output json",
    ),
    "dlq replay": (
        "duewheel dlq replay --dry-run",
        "duewheel dlq replay --code unknown_target_topic --limit 1000",
    ),
    "demo": ("duewheel demo", "duewheel demo --timers 100000 --over 60s"),
    "prove": ("duewheel prove", "duewheel prove --minutes 30 --seed 7 --out verdict.html"),
    "dev-broker run": (
        "duewheel dev-broker run --port 9092",
        "duewheel dev-broker run --port 9093 --sasl-ssl --data-dir secured-kafka",
    ),
}
