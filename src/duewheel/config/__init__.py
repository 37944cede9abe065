"""The settings: sections, kinds of values, rules between them."""
