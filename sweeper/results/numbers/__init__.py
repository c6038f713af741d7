"""Computes facts about a sweep from its records. Prints nothing."""
