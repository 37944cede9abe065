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
        "wheel/recovery/rebuild.py",
        "reach_ms = epochs.longest_window_ms",
        "reach_ms = epochs.newest.window_ms",
        test="unit/checkpoints/test_config_epochs.py::test_reading_starts_by_the_longest_window_of_all_epochs",
    ),
}
