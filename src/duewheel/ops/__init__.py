"""The operations behind commands and the HTTP API: a module or package for each subject, which has
the same name in `api`, `cli` and `serve`.
"""
