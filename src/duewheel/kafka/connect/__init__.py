"""Connections: `clients` opens and closes them, `deadline` bounds each call.

A server that accepts none: `bootstrap` finds out whether it takes connections, `login` why it
refuses a client.
"""
