"""Reads the wheel beside the running processes, without a lock."""
