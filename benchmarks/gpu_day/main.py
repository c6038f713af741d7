"""The command line of `benchmarks/gpu.py`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gpu_day import calls, pack, read
from gpu_day.steps import CALLS, ROOT, STEPS, run_step, step_of


def main() -> int:
    """Runs what the arguments ask for and returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpu.py", description="Everything to measure on a GPU.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser("pack", help="fetch the wheels that a bare machine lacks")
    one.add_argument("folder", type=Path)
    one.add_argument("--python", default="3.12", help="the machine's version of Python")
    for call, title in CALLS.items():
        one = commands.add_parser(str(call), help=title)
        one.add_argument("--out", type=Path, required=True, help="folder for what is to come back")
        one.add_argument("--wheels", type=Path, help="folder that `pack` has filled")
        one.add_argument("--rehearse", action="store_true", help="on the CPU, each step cut short")
        one.add_argument("--minutes", type=float, default=9.0, help="for the whole call")
        names = [step.name for step in STEPS if step.call == call]
        one.add_argument(
            "--only", nargs="+", choices=names, default=(), metavar="STEP", help=", ".join(names)
        )
    one = commands.add_parser("read", help="write results, fixtures and docs/gpus.md")
    one.add_argument("folder", type=Path)
    one.add_argument("--into", type=Path, default=ROOT, help="a checkout; default: this one")
    one.add_argument("--commit", default="", help="of the code that ran, where its rows do not know it")
    one = commands.add_parser("step", help="run one step by itself")
    one.add_argument("name", choices=[step.name for step in STEPS], metavar="NAME")
    one.add_argument("--rehearse", action="store_true")
    one.add_argument("--out", type=Path, default=Path.cwd(), help="folder for its files")
    one.add_argument("--rows", type=Path, help="file for its rows; default: printed")
    one.add_argument("--seconds", type=float, help="what it has; default: its limit")
    given = parser.parse_args()
    if given.command == "pack":
        return pack.pack(given.folder, given.python)
    if given.command == "read":
        return read.read(given.folder, given.into, given.commit)
    if given.command == "step":
        step = step_of(given.name)
        limit = step.rehearsal_seconds if given.rehearse else step.seconds
        seconds = given.seconds or limit
        os.environ["PYTHONPATH"] = calls.python_path()
        return run_step(step, given.rows, given.out, rehearse=given.rehearse, seconds=seconds)
    return calls.run_call(
        int(given.command),
        given.out,
        wheels=given.wheels,
        rehearse=given.rehearse,
        minutes=given.minutes,
        only=given.only,
    )
