"""Drives users' training scripts unmodified: runs them, listens, times windows, stops them."""
