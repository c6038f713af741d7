"""The operating system: files, processes, cores, environment, secrets.

Imports only the standard library, except in `remote_data`.
"""
