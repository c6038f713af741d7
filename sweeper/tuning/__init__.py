"""Tunes a script without edits: changes it at run time, and verifies that it trains the same."""
