"""Connections: `clients` opens and closes them with `client_options`, `deadline` bounds each call.

A server that accepts none: `bootstrap` finds out whether it takes connections, `login` why it
refuses a client. `network_client` can be closed beside a call, and has all use of its private
parts; `token_provider` gets the tokens of a login.
"""
