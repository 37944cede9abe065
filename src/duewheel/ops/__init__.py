"""The operations of commands and of the HTTP API: a module or package for each subject. One that
the API has, too, has the same name in `api` and `serve`.
"""
