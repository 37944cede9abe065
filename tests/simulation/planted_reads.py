"""Faults of planted.py on the way from record batches to timers."""

from __future__ import annotations

from tests.simulation.planting import Planted

READS = {
    "aborted-read": Planted(
        "read",
        "records of aborted transactions are read",
        "schemas/wire/batch_reader.py",
        "            return producer_id in self._aborting\n",
        "            return False\n",
    ),
    "aborted-for-ever": Planted(
        "2",
        "the marker of an aborted transaction does not end it",
        "schemas/wire/batch_reader.py",
        "            self._aborting.discard(producer_id)\n",
        "            pass\n",
    ),
    "last-record": Planted(
        "2",
        "the last record of a batch is not read",
        "schemas/wire/batch_reader.py",
        "        yield BatchBody(*body, count, *place",
        "        yield BatchBody(*body, count - (count > 1), *place",
    ),
    "range-end": Planted(
        "3",
        "records behind the end of a range are taken",
        "kafka/log/columns.py",
        " & (records.offset < bounds[:, 1])",
        "",
    ),
    "range-start": Planted(
        "loss report",
        "records that retention has deleted are read, where they share a batch with others",
        "kafka/log/columns.py",
        "(records.offset >= bounds[:, 0]) & ",
        "",
        test="unit/kafka/log/test_columns.py::test_records_below_the_logs_start_stay_out",
    ),
    "first-part": Planted(
        "2",
        "a range is read up to the end of its first answer",
        "kafka/log/reader.py",
        "                yield part\n",
        "                yield part\n"
        "                read = {each.partition for each in part}\n"
        "                positions = {p: at for p, at in positions.items() if p not in read}\n",
    ),
    "begins-above-marks": Planted(
        "2",
        "a query begins above the engine's marks",
        "streaming/source.py",
        "before.get(p, EARLIEST))) >= 0}",
        "before.get(p, EARLIEST) + 1)) >= 0}",
    ),
    "early-end-untold": Planted(
        "2",
        "a task that ends early does not say so",
        "streaming/byte_budget.py",
        "return {each: self._reached[each] for each in self._unread()}",
        "return {}",
    ),
    "early-end-passed": Planted(
        "2",
        "a batch begins at the planned end of one that ended early",
        "streaming/source.py",
        "self._next_offsets(ends, {**before, **begins})",
        "self._next_offsets(ends, before)",
    ),
    "handed-over": Planted(
        "2",
        "only the first part that the tasks hand over is taken",
        "streaming/task_rows.py",
        "    return batches[0].extended_by(*batches[1:]), early, added_messages\n",
        "    return batches[0], early, added_messages\n",
    ),
}
