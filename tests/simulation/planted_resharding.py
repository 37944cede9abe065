"""Faults of planted.py in the reassignment of partitions to other shards.

Not planted, because few seeds notice; those of unit/wheel/recovery/test_resharding.py in `make
crash-matrix` do:

    rows of a partition that is ahead placed below its R    twice if a loss follows, in a half slot
    a shard begins as if nothing ahead of it were closed    late rows come to slots that are out

And because nothing of a partition that is ahead lies in the slots of its shard: that its D is taken
for that of the shard's half-delivered slot.
"""

from __future__ import annotations

from tests.simulation.planting import Planted

DEALING = "ops/reshard.py"
RECORDS = "checkpoints/reshard_records.py"
PROGRESS = "checkpoints/progress.py"
OWNERSHIP = "checkpoints/ownership.py"
RECOVERY = "wheel/recovery/kept_files.py"
FIRST_OFFSETS = "wheel/recovery/first_offsets.py"

DEALT = "unit/wheel/recovery/test_resharding.py::"

RESHARDING = {
    "reshard-not-fenced": Planted(
        "7",
        "a shard is sealed as it stood before it was fenced",
        DEALING,
        "        found = publisher.start()\n",
        "        found = publisher.peek()\n        publisher.start()\n",
    ),
    "reshard-sealed-before": Planted(
        "moved",
        "sealed again, a shard is sealed as it was first found",
        DEALING,
        "                record = result.position\n",
        "",
    ),
    "reshard-sealed-served": Planted(
        "ownership",
        "a sealed shard may be served",
        OWNERSHIP,
        "    if progress.sealed_for is None:\n",
        "    if True:\n",
        test="unit/wheel/recovery/test_startup.py::test_a_sealed_shard_is_owned_by_no_one",
    ),
    "reshard-others-served": Planted(
        "ownership",
        "a shard of so many is served by whoever thinks that there are others",
        OWNERSHIP,
        "if (progress.shard, progress.shards) != (shard, shards):",
        "if progress.shard != shard:",
    ),
    "reshard-gone-not-sealed": Planted(
        "refused",
        "a shard that is no more is left as it was",
        DEALING,
        "for shard in range(self._to, count)\n",
        "for shard in range(0)\n",
    ),
    "reshard-half": Planted(
        "moved",
        "a slot that was half delivered is pending in full",
        RECORDS,
        "mine = {p: part for p, part in parts.items()",
        "mine = {p: replace(part, c1=None, d=None, n=None) for p, part in parts.items()",
        test=DEALT + "test_a_slot_half_delivered_by_one_shard_is_finished_by_another",
    ),
    "reshard-ahead-falls": Planted(
        "7",
        "a partition that is ahead falls back to where its shard stands",
        PROGRESS,
        "        if part is None or part.delivered_slot < slot:\n",
        "        if part is None or part.delivered_slot != slot:\n",
        test=DEALT + "test_any_number_of_shards_after_another_with_any_loss",
    ),
    "reshard-ahead-read": Planted(
        "2",
        "a partition that is behind is read again from where another one stands",
        FIRST_OFFSETS,
        "offsets = {slot: offsets_at(slot * config",
        "offsets = {slot: offsets_at(max(slots) * config",
        test=DEALT + "test_each_partition_is_read_again_from_its_own_r",
    ),
    "reshard-floor": Planted(
        "7",
        "a shard begins where the first of its partitions stands",
        PROGRESS,
        "return min(p.delivered_slot for p in self.partitions.values())",
        "return max(p.delivered_slot for p in self.partitions.values())",
        test=DEALT + "test_any_number_of_shards_after_another_with_any_loss",
    ),
    "reshard-epochs": Planted(
        "moved",
        "a shard judges by the settings that the first one's partitions have had",
        RECORDS,
        "epochs = functools.reduce(Epochs.beside, (record.epochs for record in old))",
        "epochs = old[0].epochs",
        test=DEALT + "test_each_partition_keeps_the_settings_that_it_had",
    ),
    "reshard-standby": Planted(
        "3",
        "a standby keeps what it has followed before the partitions were dealt",
        RECOVERY,
        "return progress.shard, progress.assignment_epoch",
        "return progress.shard, 0",
        test=DEALT + "test_a_standby_killed_while_partitions_come_to_its_shard",
    ),
    "reshard-standby-of-another": Planted(
        "refused",
        "the files of another shard's standby are taken for this shard's",
        RECOVERY,
        "return progress.shard, progress.assignment_epoch",
        "return 0, progress.assignment_epoch",
        test=DEALT + "test_files_that_followed_another_shard_are_not_kept",
    ),
    "reshard-undo-compared": Planted(
        "refused",
        "an undo is refused where shards differ, or stand too far apart",
        DEALING,
        "        if len(records) == self._to:\n",
        "        if False:\n",
        test=DEALT + "test_an_undo_asks_for_no_common_history",
    ),
    "reshard-answers": Planted(
        "9",
        "a new shard does not know what is answered",
        RECORDS,
        "mine = {p: part for p, part in parts.items()",
        "mine = {p: replace(part, a=0) for p, part in parts.items()",
    ),
}
