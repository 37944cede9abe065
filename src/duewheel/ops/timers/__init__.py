"""Pending timers, as the mapped files have them: lists, single ones, counts, the histogram."""
