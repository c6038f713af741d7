"""Reads recorded surfaces, and replays searches over them. docs/surfaces.md describes both."""
