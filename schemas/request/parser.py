"""The message contract: parses a batch of Kafka records, as Spark gives them, into timers.

Any bytes in key, value and headers make a timer or a dead letter, never an exception. A rejected
row keeps all its headers, request headers too, and gets TIMER_ERROR_CODE and TIMER_ERROR after
them. A record batch that is not read becomes one dead letter, whatever the settings
(unread_batches.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.errors import ConfigError
from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import ACCEPTED, LEVEL_MAX, NO_LEVEL, NO_PARTITION, TimerBatch
from duewheel.schemas.columns import (
    Column,
    binary,
    constant,
    decimals,
    filled,
    join,
    scatter,
    take,
)
from duewheel.schemas.hashing import id_hashes, source_names
from duewheel.schemas.header_names import Request
from duewheel.schemas.request.acceptance_rules import VALUE, Rule, Rules, compile_suite
from duewheel.schemas.request.cancel_requests import read_cancels
from duewheel.schemas.request.drop_in_deliveries import delivered_keys, placing_hashes, traces
from duewheel.schemas.request.due_times import DueTimes, due_times
from duewheel.schemas.request.headers import (
    USERS,
    Field,
    Headers,
    badly_named,
    forged_rows,
    header_groups,
    read_headers,
    rows_of,
    users_own,
)
from duewheel.schemas.request.recurrences import is_recurrence, recurrences
from duewheel.schemas.request.request_columns import (
    RequestColumns,
    copies,
    kept_in_letters,
    rule_columns,
    target_column,
    waiting_letters,
)
from duewheel.schemas.request.row_settings import RowSettings
from duewheel.schemas.request.topic_settings import DEFAULT, TopicContract
from duewheel.schemas.request.unread_batches import CODES as UNREAD_CODES
from duewheel.schemas.request.unread_batches import codes_of as unread_codes
from duewheel.schemas.request.unread_batches import error_headers as unread_errors
from duewheel.schemas.wire.copy_mac import own_copies
from duewheel.schemas.wire.kafka_records import KafkaRecords, Unread
from duewheel.schemas.wire.record_codec import framed, framed_bytes, key_values

_pa: Any = pa
_pc: Any = pyarrow.compute


# The code of a dead letter that has waited: its own code was counted before.
WAITED = "waited"


@dataclass(frozen=True, slots=True)
class Contract:
    """The settings that apply to messages."""

    levels_ms: tuple[int, ...]  # delay of DELAY level 1, 2, …
    # Settings of timer topics, where they differ from the default
    topics: Mapping[str, TopicContract]
    dead_letter_topic: str
    rules: Rules
    default: TopicContract = DEFAULT  # the settings of the other topics
    # Of the MACs of copies (wire/copy_mac.py); None: all copies count as duewheel's
    copy_keys: tuple[bytes, ...] | None = None

    def __post_init__(self) -> None:
        if not self.levels_ms or min(self.levels_ms) < 0:
            raise ConfigError("delay levels: at least one is needed, and none may be negative")
        if len(self.levels_ms) > LEVEL_MAX:
            raise ConfigError(f"delay levels: {LEVEL_MAX} at most, not {len(self.levels_ms)}")
        self._check_targets()

    @property
    def has_recurrences(self) -> bool:
        """Whether records may be recurring timers (recurrences.py)."""
        return self._checks("recurrence")

    @property
    def has_if_pending(self) -> bool:
        """Whether TIMER_IF_PENDING has a meaning (cancel_requests.py)."""
        return self._checks("if_pending")

    def _checks(self, column: str) -> bool:
        # A header is a user's own in a settings epoch that is older than its rule.
        return any(rule.column == column for rule in self.rules.rules)

    def topic(self, name: str) -> TopicContract:
        return self.topics.get(name, self.default)

    def _check_targets(self) -> None:
        """Refuses a configured target that no message could request."""
        given = {n: each.target for n, each in self.topics.items() if each.target is not None}
        refused = self.refused_targets(None, given.values())
        for topic, target in given.items():
            if target in refused:
                reason = refused[target].reason
                raise ConfigError(f"{topic!r} cannot be mapped to {target!r}: {reason}")

    def refused_targets(self, timer_topic: str | None, names: Iterable[str]) -> dict[str, Rule]:
        """The names that no message of a timer topic may request, and the rule that rejects each.
        Without a timer topic the lists of open targets do not count.
        """
        targets = list(dict.fromkeys(names))
        settings = RowSettings(
            [DEFAULT if timer_topic is None else self.topic(timer_topic)],
            np.zeros(len(targets), np.int32),
        )
        columns = rule_columns(RequestColumns.of_targets(settings, targets))
        failures = self.rules.first_failure(columns).tolist()
        return {
            target: self.rules.rules[failure]
            for target, failure in zip(targets, failures, strict=True)
            if failure != ACCEPTED
        }

    def slot_values(self) -> dict[str, Any]:
        """The settings that decide a row's due time and whether it is accepted, for JSON. They
        include the rules in full: another version may ship others.
        """
        return {
            "levels_ms": list(self.levels_ms),
            "parameters": dict(sorted(self.rules.parameters.items())),
            "rules": self.rules.digest,
            "suite": self.rules.suite,
            "topics": {name: each.to_json() for name, each in sorted(self.topics.items())},
            "topics_default": self.default.to_json(),
        }

    @classmethod
    def from_slot_values(
        cls, values: Mapping[str, Any], dead_letter_topic: str, copy_keys: Sequence[str] = ()
    ) -> Contract:
        """The contract that had these `slot_values`, with the present dead-letter topic.
        `copy_keys` are hexadecimal; none: all copies count as duewheel's.

        Raises:
            ConfigError: they cannot be read.
        """
        try:
            return cls(
                tuple(map(int, values["levels_ms"])),
                {n: TopicContract.from_json(each) for n, each in values["topics"].items()},
                dead_letter_topic,
                compile_suite(values["suite"], values["parameters"]),
                TopicContract.from_json(values.get("topics_default", {})),
                tuple(map(bytes.fromhex, copy_keys)) or None,
            )
        except (LookupError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise ConfigError(f"not the settings of a contract: {error!r}") from error


def parse(records: KafkaRecords, contract: Contract) -> TimerBatch:
    """Records to timers and cancels, in the same order."""
    return parse_with_columns(records, contract)[0]


def parse_with_columns(records: KafkaRecords, contract: Contract) -> tuple[TimerBatch, pa.Table]:
    """The same, and the columns that the rules have checked (request_columns.RULE_COLUMNS)."""
    of_partitions = [contract.topic(topic) for topic, _ in records.partitions]
    settings = RowSettings(of_partitions, records.partition)
    keys = contract.copy_keys
    own = None if keys is None else own_copies(records, keys)
    headers = _with_meaning(read_headers(records.headers, settings.mode, own), contract)
    record_key = records.key.column()
    requests = _requests(headers, records, record_key, settings, contract.levels_ms)
    columns = rule_columns(requests)
    failure, letters = contract.rules.first_failure(columns), waiting_letters(headers)
    unread = records.unread
    no_rule = letters.copy()
    if unread is not None:
        no_rule[unread.row] = True
    failure[no_rule] = ACCEPTED
    rejected = (failure != ACCEPTED) | no_rule
    timer, cancelling = requests.cancels.accepted(rejected)
    placed = timer & ~rejected
    target, targets = _targets(columns.column("target_topic"), placed, contract)
    copy = copies(requests.fields, records.offset, ~rejected)
    if letters.any():
        copy = copy.where(~letters, copies(headers.fields(), records.offset, letters).unrolled())
    timer_id, id_hash = _ids(requests.cancels.ids, rejected, records, copy.origin_offset)
    foreign = settings.drop_in(requests.fields) & placed
    key, key_value = _keys_and_values(records, record_key, foreign, requests.fields)
    recurring = requests.recurrences.recurring & ~rejected
    encoded, header_count = _headers(headers, failure, letters, recurring, columns, contract.rules)
    if unread is not None:
        errors = unread_errors(unread, records.offset[unread.row])
        encoded = join(encoded, scatter(errors, unread.row, len(records)))
        header_count[unread.row] = 2
    if settings.mode is not None:
        added, added_count = traces(records, settings.mode, foreign)
        encoded, header_count = join(encoded, added), header_count + added_count
    batch = TimerBatch(
        partitions=records.partitions,
        partition=records.partition,
        offset=records.offset,
        origin_offset=copy.origin_offset,
        due_ms=_due_ms(requests.due, placed, key, id_hash),
        not_before_ms=copy.not_before_ms,
        codes=[*(rule.code for rule in contract.rules.rules), WAITED, *UNREAD_CODES],
        code=_codes(failure, letters, unread, len(contract.rules.rules)),
        timer=timer,
        cancels=cancelling,
        named_offset=requests.cancels.named_offset,
        targets=targets,
        target=target,
        target_partition=_target_partitions(columns, rejected),
        key_hash=placing_hashes(key, placed, requests.fields),
        id_hash=id_hash,
        timer_id=timer_id,
        key_value=key_value,
        headers=encoded,
        header_count=header_count,
        roll_times=copy.roll_times,
        retries=copy.retries,
        level=np.where(placed, np.maximum(requests.due.level, copy.level), NO_LEVEL).astype(
            np.int32
        ),
        timestamp_ms=records.timestamp_ms,
        chase_slot=copy.chase_slot,
        chase_flags=copy.chase_flags,
        recurring=recurring,
        seed=requests.recurrences.seed & recurring,
        forged=forged_rows(headers, own),
        keeps=requests.cancels.keeps & ~rejected,
    )
    return batch, columns


def _with_meaning(headers: Headers, contract: Contract) -> Headers:
    """The headers; those that the contract's settings epoch does not know as the user's own."""
    if not contract.has_recurrences:
        headers = users_own(headers, is_recurrence(headers))
    if not contract.has_if_pending:
        headers = users_own(headers, headers.request == Request.IF_PENDING)
    return headers


def _keys_and_values(
    records: KafkaRecords, record_key: Column, foreign: Bool, fields: Mapping[Request, Field]
) -> tuple[Column, Column]:
    """The keys of the deliveries, and keys with values as in records."""
    key = delivered_keys(record_key, foreign, fields)
    if foreign.any():
        return key, key_values(key, records.value.column())
    return key, records.key_value.column()


def _codes(failure: Int32, letters: Bool, unread: Unread | None, rules: int) -> Int32:
    """Row → index in the codes: of so many rules, WAITED, and UNREAD_CODES."""
    code = np.where(letters, rules, failure).astype(np.int32)
    if unread is not None:
        code[unread.row] = rules + 1 + unread_codes(unread)
    return code


def _requests(
    headers: Headers,
    records: KafkaRecords,
    key: Column,
    settings: RowSettings,
    levels_ms: Sequence[int],
) -> RequestColumns:
    """The requests of the records under the settings of their topics."""
    count = len(records)
    fields: Mapping[Request, Field] = headers.fields()
    cancelling = settings.cancelling_keys(fields, key, records.value.is_null)
    named = settings.keys_as_ids(fields, key)
    cancels = read_cancels(fields, cancelling, named, count)
    fields = cancels.of_timers(fields)
    repeated = recurrences(fields, cancels.ids, settings.refuses_recurring(), records)
    excepted = cancels.pure | rows_of(fields, [Request.ORIGIN], count)
    due = due_times(fields, records.timestamp_ms, levels_ms, settings.delay_ms(excepted))
    due = due.at_once(repeated.seed, records.timestamp_ms)
    target = target_column(fields.get(Request.TARGET_TOPIC), *settings.default_targets)
    return RequestColumns(
        *(fields, cancels, due, repeated, records.timestamp_ms, records.offset, target),
        closed=settings.closed_targets(target),
        badly_named=badly_named(headers),
        rejects_past_due=settings.rejects_past_due(),
        unframed=settings.unframed(records.value, excepted),
        max_delay_ms=settings.max_delay_ms(),
    )


def _targets(column: Any, placed: Bool, contract: Contract) -> tuple[Int32, list[str]]:
    """Row → index in the list of targets; the dead-letter topic for rows that are not placed. The
    list has no names of rejected rows: these can be any bytes.
    """
    encoded = column.combine_chunks()
    index = np.asarray(_pc.fill_null(encoded.indices, 0)).astype(np.int64)
    used = np.zeros(len(encoded.dictionary), np.bool_)
    used[index[placed]] = True
    accepted = encoded.dictionary.filter(_pa.array(used)).to_pylist()
    targets = list(dict.fromkeys([*accepted, contract.dead_letter_topic]))
    place = {name: i for i, name in enumerate(targets)}
    of_name = np.zeros(max(len(used), 1), np.int32)
    of_name[np.flatnonzero(used)] = [place[name] for name in accepted]
    return np.where(placed, of_name[index], place[contract.dead_letter_topic]), targets


def _target_partitions(columns: pa.Table, rejected: Bool) -> Int32:
    requested: Any = columns.column("target_partition")
    number = np.asarray(_pc.fill_null(requested, NO_PARTITION))
    return np.where(rejected, NO_PARTITION, number).astype(np.int32)


def _due_ms(due: DueTimes, placed: Bool, key: Column, id_hash: Int64) -> Int64:
    """Due times, spread inside their windows by key, or by id where the key is null."""
    rows = np.flatnonzero(placed & (due.window_ms > 0))
    if not len(rows):
        return due.due_ms
    keys = take(key, rows)
    spread_by = np.where(np.asarray(keys.is_null()), id_hash[rows], id_hashes(filled(keys)))
    return due.spread(spread_by, rows)


def _ids(
    field: Field, rejected: Bool, records: KafkaRecords, origin_offset: Int64
) -> tuple[Column, Int64]:
    """The timers' ids (empty for the default) and their hashes (of the default too). A rejected
    row gets the default, because its own id may be of any length.
    """
    given = field.where(~rejected[field.rows])
    default = np.ones(len(origin_offset), np.bool_)
    default[given.rows] = False
    hashes = np.zeros(len(origin_offset), np.int64)
    hashes[given.rows] = id_hashes(given.values)
    hashes[default] = id_hashes(
        source_names(records.partitions, records.partition[default], origin_offset[default])
    )
    return scatter(given.values, given.rows, len(origin_offset)), hashes


def _headers(
    headers: Headers,
    failure: Int32,
    letters: Bool,
    recurring: Bool,
    columns: pa.Table,
    rules: Rules,
) -> tuple[Column, Int32]:
    """The users' headers, and those of recurrences; in rejected rows all headers and the reason; in
    dead letters that have waited all but LETTER_END.
    """
    keep = (headers.request == USERS) | (headers.request == Request.PARTITION_KEY)
    if recurring.any():
        keep |= is_recurrence(headers) & recurring[headers.rows()]
    rejected = failure != ACCEPTED
    if letters.any():
        keep |= kept_in_letters(headers, letters)
    if not rejected.any():
        return header_groups(headers, keep)
    encoded, count = header_groups(headers, keep | rejected[headers.rows()])
    errors = _errors(failure, columns, rules.rules)
    return join(encoded, errors), count + 2 * rejected.astype(np.int32)


def _errors(failure: Int32, columns: pa.Table, rules: Sequence[Rule]) -> Column:
    """TIMER_ERROR_CODE and TIMER_ERROR of rejected rows, nothing in the others."""
    constants = [b"" if rule.names_value else error_headers(rule) for rule in rules]
    errors = take(binary([b"", *constants]), failure + 1)
    for i, rule in enumerate(rules):
        rows = np.flatnonzero(failure == i)
        if rule.names_value and len(rows):
            values: Any = columns.column(rule.column).take(_pa.array(rows))
            before, after = rule.reason.encode().split(VALUE)
            reason = join(constant(before), decimals(np.asarray(values)), constant(after))
            name = _header(names.ERROR_CODE, rule.code) + framed_bytes(names.ERROR.encode())
            errors = join(
                errors, scatter(join(constant(name), *framed(reason)), rows, len(failure))
            )
    return errors


def error_headers(rule: Rule) -> bytes:
    """The last headers of a row that this rule has rejected; not for a reason with VALUE."""
    return _header(names.ERROR_CODE, rule.code) + _header(names.ERROR, rule.reason)


def _header(name: str, value: str) -> bytes:
    return framed_bytes(name.encode()) + framed_bytes(value.encode())
