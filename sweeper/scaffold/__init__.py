"""Writes first search spaces (`sweeper init`) and tries out a space before it runs (`sweeper check`)."""
