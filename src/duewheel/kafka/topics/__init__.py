"""Topics: `requirements` has the settings that each must have, `topic_checks` compares, `admin`
creates.

`discovery` decides which timer topics are read, `transaction_settings` which settings no
transaction survives. `topic_reader` has the connection of `admin`, `description` the requests for
topics and their settings.
"""
