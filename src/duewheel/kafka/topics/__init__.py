"""Topics: `requirements` of each, `topic_checks` compares with them, `admin` creates and alters.

`discovery` decides which timer topics are read, `transaction_settings` which settings no
transaction survives. `topic_reader` has the connection of `admin`, `description` the requests for
topics and their settings.
"""
