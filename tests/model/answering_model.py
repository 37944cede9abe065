"""The model's cancels in dequeue: replies and chases, in the transactions with the progress.

Once a progress has C above a cancel, nothing that the cancel flagged can come back: a process that
reads those rows again reads the cancel again, too, and flags them before they leave. From there on
the cancel may be answered. An undecided one is written again at the end of its partition.

Without a topic for answers these are left out, and all else is the same.
"""

from __future__ import annotations

from tests.model.clauses import Clauses
from tests.model.files_model import Directory, Marks, Outcome
from tests.model.kafka_model import Answer, Kind, Progress, Record


def next_answers(
    directory: Directory,
    progress: Progress,
    answered: Marks,
    count: int,
    now: int,
    clauses: Clauses,
) -> list[Answer]:
    """What a transaction with this progress has for cancels: per partition in order.

    Args:
        answered: cancels below these offsets have had theirs.
        count: the most that the transaction may have.
    """
    answers: list[Answer] = []
    stopped: set[int] = set()
    for outcome in _in_order(directory.files.segments, clauses):
        x = outcome.cancel
        part = progress.partitions.get(x.partition)
        if part is None or x.partition in stopped or x.offset < answered.get(x.partition, 0):
            continue
        waits = x.offset >= part.closed_c and clauses.answer_waits_for_c
        if waits or len(answers) == count:
            stopped.add(x.partition)
            continue
        chase = None
        if outcome.word is None:
            assert directory.close is not None
            g = part.r if clauses.g_is_r_of_the_transaction else directory.close.floor
            chase = _chase(outcome, g, now)
        answers.append(Answer(x.partition, x.offset, x.request, outcome.word, chase))
    return answers


def answered_until(
    directory: Directory, progress: Progress, known: Marks, answers: list[Answer]
) -> dict[int, int]:
    """`a` of a transaction with these answers: the first cancel that has none, or else C.

    Args:
        known: `a` before.
    """
    first_open = {p: part.closed_c for p, part in progress.partitions.items()}
    done = {(x.partition, x.offset) for x in answers}
    for outcome in directory.files.segments:
        partition, offset = outcome.cancel.partition, outcome.cancel.offset
        if offset >= known.get(partition, 0) and (partition, offset) not in done:
            first_open[partition] = min(first_open.get(partition, 0), offset)
    ends = {x.partition: x.offset + 1 for x in answers}
    return {p: max(known.get(p, 0), ends.get(p, 0), end) for p, end in first_open.items()}


def _in_order(segments: list[Outcome], clauses: Clauses) -> list[Outcome]:
    falls = not clauses.answers_go_in_order
    return sorted(segments, key=lambda x: (x.cancel.partition, x.cancel.offset), reverse=falls)


def _chase(outcome: Outcome, g: int, now: int) -> Record:
    x = outcome.cancel
    return Record(Kind.CANCEL, x.id, -1, now, now, origin=x.request, g=g, found=outcome.found)


def forget_answered(directory: Directory, progress: Progress, clauses: Clauses) -> None:
    """Give up the segments of what has its answer, also those that the durable checkpoint names."""
    for files in (directory.files, *([directory.durable[0]] if directory.durable else [])):
        files.segments = [x for x in files.segments if not _is_over(x, progress, clauses)]


def _is_over(outcome: Outcome, progress: Progress, clauses: Clauses) -> bool:
    part = progress.partitions.get(outcome.cancel.partition)
    if part is None:
        return False
    end = part.a if clauses.segment_stays_until_it_is_answered else part.closed_c
    return outcome.cancel.offset < end
