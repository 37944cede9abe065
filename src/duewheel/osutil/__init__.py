"""Access to the host: signals, child processes, temporary folders, terminal, logs, metrics."""
