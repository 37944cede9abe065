"""`duewheel send --file`: a timer for each line, acknowledged one by one, or exactly once."""
