"""`duewheel audit`: Great Expectations' verdict over the timer topics."""
