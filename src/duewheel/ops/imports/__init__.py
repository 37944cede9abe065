"""`duewheel import`: writes what waits in another delay service as timers, once."""
