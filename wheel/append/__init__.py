"""Ingest: one batch of timers and cancels into the wheel, all of it or nothing."""
