"""The sweep folder: its files, its lock, and reading it back."""
