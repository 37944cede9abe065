"""`duewheel audit`: validates the timer topics with Great Expectations.

run             one audit: its range, its steps, its result; `schedule` starts it at intervals
range           chunks of bounded size
validation      the three verdicts about each row, and where they disagree
expectations    the library, and the totals over all chunks
topic_suites    the operator's own suites; row_sources names their rows
data_docs, history, metrics
                the parts of a result that stay
"""
