"""Connections: `clients` opens and closes them with `client_options`.

Where no server accepts one, `login` finds out why; `bootstrap` asks before a command begins.
`network_client` can be closed beside a call, and alone names its private parts; `token_provider`
gets the tokens of a login.
"""
