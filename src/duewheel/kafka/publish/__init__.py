"""A shard's transactions: `publisher` runs them, `held_queue` decides which copies wait."""
