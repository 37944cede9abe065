"""`duewheel audit`: validates the timer topics with Great Expectations."""
