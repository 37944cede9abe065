"""Recurring schedules: recurring timers that are pending here, by their names."""
