"""Runs one job in a separate process: config.json in, outcome.json out."""
