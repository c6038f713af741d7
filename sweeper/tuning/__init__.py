"""Tuning a script that nobody edits: what can be changed at run time, and proof that it trains the same."""
