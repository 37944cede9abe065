"""The wheel seen from beside the running processes, without a lock."""
