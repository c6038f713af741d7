"""The YAML: what a user asks for, read and checked before anything runs."""
