"""Compares arms by speed: processes of each take turns, and intervals are over processes."""
