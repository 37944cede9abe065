"""The move of schedules from a former `duewheel recur` to recurring timers."""
