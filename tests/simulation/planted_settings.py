"""Faults of planted.py in the epochs of changed settings."""

from __future__ import annotations

from tests.simulation.planting import Planted

SETTINGS = {
    "epoch-ignored": Planted(
        "3",
        "rows are placed by the newest window, whatever their epoch",
        "wheel/append/engine.py",
        "window_ms = self._epochs.windows_ms(batch.partitions, batch.partition, batch.offset)",
        "window_ms = self._epochs.newest.window_ms",
        seed=144,
    ),
    "contract-ignored": Planted(
        "bytes",
        "rows are parsed under the newest contract, whatever their epoch",
        "streaming/epoch_parser.py",
        "    if (index == newest).all():\n",
        "    if True:\n",
        test="unit/checkpoints/test_config_epochs.py::test_each_row_is_parsed_under_the_contract_of_its_epoch",
    ),
    "epoch-at-c": Planted(
        "bytes",
        "a new epoch begins at C, though rows above it have been placed",
        "wheel/admin/change_settings.py",
        "            local.commit.marks.get(p, 0),\n",
        "            0,\n",
        test="unit/wheel/admin/test_change_settings.py::test_an_epoch_begins_behind_everything_that_was_judged",
    ),
    "change-within-a-batch": Planted(
        "3",
        "a batch is committed though its settings have changed since it was placed",
        "wheel/append/engine.py",
        "            self._require_same_epochs(None)\n            floor",
        "            floor",
        test="unit/wheel/admin/test_running_change.py::test_a_batch_of_the_former_settings_is_refused_from_the_request_on",
    ),
    "request-unheeded": Planted(
        "3",
        "ingest commits batches while dequeue reads their marks for a new epoch",
        "wheel/append/engine.py",
        "if state.live.wanted_settings:",
        "if False:",
        test="unit/wheel/admin/test_running_change.py::test_a_batch_of_the_former_settings_is_refused_from_the_request_on",
    ),
    "request-ends-before-claim": Planted(
        "3",
        "the request for other settings ends before the claim by which ingest sees them",
        "wheel/recovery/startup.py",
        "        state.claim(*claimed)\n        state.live.want_settings(0)\n",
        "        state.live.want_settings(0)\n        state.claim(*claimed)\n",
        test="unit/wheel/admin/test_running_change.py::test_the_request_ends_behind_the_claim",
    ),
    "epochs-read-before-claim": Planted(
        "3",
        "ingest takes the epochs of before a start for those of that start",
        "wheel/append/engine.py",
        """        incarnations = self._directory.state.incarnations
        return incarnations, self._progress().epochs
""",
        """        epochs = self._progress().epochs
        return self._directory.state.incarnations, epochs
""",
        test="unit/wheel/admin/test_running_change.py::test_a_start_while_ingest_loads_the_epochs",
    ),
    "epochs-forgotten": Planted(
        "3",
        "a new epoch takes the place of all before it",
        "checkpoints/config_epochs.py",
        "all(o <= lowest.get(p, 0) for p, o in kept[1].since.items())",
        "True",
        test="unit/wheel/admin/test_change_settings.py::test_an_epoch_begins_behind_everything_that_was_judged",
    ),
    "newest-window": Planted(
        "2",
        "reading again starts by the window of the newest epoch",
        "wheel/recovery/first_offsets.py",
        "reach_ms = epochs.longest_window_ms",
        "reach_ms = epochs.newest.window_ms",
        test="unit/checkpoints/test_config_epochs.py::test_reading_starts_by_the_longest_window_of_all_epochs",
    ),
    "key-at-marks": Planted(
        "1",
        "a new key for copies holds from what ingest has read, and copies on their way are none",
        "wheel/admin/change_settings.py",
        "max(taken, ends.get(p, 0))",
        "taken",
        seed=63,
    ),
    "key-over-held": Planted(
        "1",
        "a new key is drawn while copies are held that the former one has signed",
        "wheel/admin/change_settings.py",
        "        _require_none_held(progress)\n",
        "",
        test="unit/wheel/admin/test_change_settings.py::test_a_new_key_waits_for_held_copies",
    ),
    "key-lost-by-change": Planted(
        "1",
        "changed settings drop the keys of copies: copies count unsigned",
        "checkpoints/config_epochs.py",
        "Epoch(values, since, keys)",
        "Epoch(values, since)",
        seed=50,
    ),
    "key-reaches-back": Planted(
        "1",
        "changed settings begin before the newest key: copies of the former one count as forged",
        "checkpoints/config_epochs.py",
        "since = {p: max(offset, drawn_at.get(p, 0)) for p, offset in since.items()}\n",
        "pass\n",
        test="unit/checkpoints/test_config_epochs.py::"
        "test_changed_settings_begin_no_earlier_than_the_newest_key",
    ),
    "key-of-one-shard": Planted(
        "1",
        "two shards that become one keep the keys of one: copies of the other are none",
        "checkpoints/copy_keys.py",
        "dict.fromkeys([*ours, *theirs])",
        "ours",
        seed=235,
    ),
    "keyless-beside-keyed": Planted(
        "1",
        "two shards that become one have the keys of one where the other had unsigned copies",
        "checkpoints/config_epochs.py",
        "bool(self.copy_keys) == bool(other.copy_keys) and ",
        "",
        test="unit/checkpoints/test_config_epochs.py::"
        "test_unsigned_copies_of_one_shard_stay_copies_beside_a_shard_with_a_key",
    ),
    "mac-unchecked": Planted(
        "bytes",
        "a record counts as a copy whatever its MAC is",
        "schemas/wire/copy_mac.py",
        "any(hmac.compare_digest(given, _mac(key, *of)) for key in keys)",
        "True",
        seed=13,
    ),
    "mac-without-partition": Planted(
        "bytes",
        "a copy of one timer partition is one in each",
        "schemas/wire/copy_mac.py",
        'f"{topic}-{number}".encode()',
        'b""',
        test="unit/schemas/wire/test_copy_mac.py::test_of_another_key_or_another_partition_none_is_a_copy",
    ),
    "forged-headers-kept": Planted(
        "bytes",
        "headers of copies have a meaning in a producer's record",
        "schemas/request/headers.py",
        "meaning[~own] += 2 * len(MODES)",
        "pass",
        seed=13,
    ),
    "copies-go-anywhere": Planted(
        "bytes",
        "the rule of open targets is skipped",
        "schemas/request/parser.py",
        "closed=settings.closed_targets(target),",
        "closed=np.zeros(len(records), np.bool_),",
        test="unit/schemas/wire/test_copy_mac.py::test_a_rejected_copy_keeps_its_mac",
    ),
    "failed-copy-unsigned": Planted(
        "bytes",
        "a copy that becomes a dead letter has no MAC: its replay is an ordinary message",
        "wheel/dequeue/routing.py",
        "signed(deliveries, copy_key, dead)",
        "signed(deliveries, copy_key, ~dead)",
        test="unit/wheel/dequeue/test_routing.py::test_the_replay_of_a_rolled_copy_is_a_copy",
    ),
}
