"""Which records leave in which slot: the wheel and RocksDB, behind one seam (timeline.py)."""
