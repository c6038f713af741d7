"""Tunes a script without edits: changes it at run time, and proves that it trains the same."""
