"""The timelines, which find the records of a slot: the wheel and RocksDB, under one seam
(timeline.py).
"""
