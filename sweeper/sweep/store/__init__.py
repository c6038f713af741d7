"""The sweep folder: what is in it, which one a command works on, and how it is read back."""
