"""Policies of delivery: rules by which timers that are due leave later, or become dead letters."""
