"""`duewheel relay`: rows that applications commit in their database become timers."""
