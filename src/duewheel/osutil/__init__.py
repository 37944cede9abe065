"""The host: signals, child processes, temporary folders, terminal, logs, metrics."""
