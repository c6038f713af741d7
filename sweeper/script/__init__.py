"""Drives users' training scripts as they are: runs them, listens, times windows, ends them."""
