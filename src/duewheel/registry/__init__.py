"""Values of messages, decoded by the schemas of a registry. No process of a shard imports it."""
