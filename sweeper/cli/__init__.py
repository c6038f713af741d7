"""The command line: parse, call, print; nothing else."""

from sweeper.cli.app import main

__all__ = ["main"]
