"""The settings: keys, kinds of values, and rules that several keys must satisfy together."""
