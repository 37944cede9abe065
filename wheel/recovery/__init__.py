"""A start: `kept_files` and `first_offsets` decide, `startup` of dequeue, `rebuild` of the rest."""
