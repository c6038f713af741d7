"""Reads, writes and locks the sweep folder."""
