"""A start: `decision` which files are kept, `startup` of dequeue, `rebuild` of the others."""
