"""Trains an exported configuration to the end and compares its speed with the promised speed."""
