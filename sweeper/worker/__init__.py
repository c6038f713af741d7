"""Runs one job in a process of its own: config.json in, outcome.json out."""
