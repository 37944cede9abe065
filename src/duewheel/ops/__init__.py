"""The operations of commands and of the HTTP API: a module or package for each subject, which has
the same name in `api`, `cli` and `serve`.
"""
