"""Timers that are written, cancelled and replaced: records in a timer topic, like any client's."""
