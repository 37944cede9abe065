"""From Kafka records to timers: headers, rules, the topics' settings."""
